#include <pianola/core/display_width.hpp>
#include <pianola/core/report.hpp>
#include <pianola/core/report_format.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {
namespace {

constexpr std::string_view kGap = "  ";
constexpr std::size_t kNarrowest = 8;  // A column of text is not shortened below this.

/// A column of a table, laid out.
struct Column {
  std::string heading;
  std::vector<std::string> cells;
  Align align = Align::left;
  bool shrinkable = true;
  std::size_t width = 0;
};

std::string heading_of(const ReportColumn& column) {
  const std::string& label = column.label.empty() ? column.key : column.label;
  return one_line(column.unit.empty() || column.unit == "bytes" ? label : label + " (" + column.unit + ")");
}

Column lay_out(const ReportTable& table, std::size_t index) {
  const ReportColumn& spec = table.columns()[index];
  std::vector<ReportValue> values;
  for (const ReportTable::Row& row : table.rows()) values.push_back(row[index]);
  const int decimals = spec.decimals >= 0 ? spec.decimals : decimals_for(values);
  const auto is_number = [](const ReportValue& v) { return v.is_number(); };
  const bool numbers = std::any_of(values.begin(), values.end(), is_number);

  Column column{.heading = heading_of(spec), .cells = {}, .align = numbers ? Align::right : Align::left};
  column.shrinkable = !numbers;
  column.width = display_width(column.heading);
  for (const ReportValue& value : values) {
    column.cells.push_back(format_value(value, spec.unit, decimals));
    column.width = std::max(column.width, display_width(column.cells.back()));
  }
  return column;
}

void fit(std::vector<Column>& columns, std::size_t width) {
  std::size_t total = (columns.size() - 1) * kGap.size();
  for (const Column& column : columns) total += column.width;
  for (; total > width; --total) {
    Column* widest = nullptr;
    for (Column& column : columns) {
      if (!column.shrinkable || column.width <= kNarrowest) continue;
      if (widest == nullptr || column.width > widest->width) widest = &column;
    }
    if (widest == nullptr) return;
    --widest->width;
  }
}

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

template <class CellOf>
std::string line_of(const std::vector<Column>& columns, const std::string& indent, CellOf cell_of) {
  std::string line = indent;
  for (const Column& column : columns) {
    if (&column != &columns.front()) line += kGap;
    line += pad(shorten(cell_of(column), column.width), column.width, column.align);
  }
  return without_trailing_blanks(std::move(line)) + "\n";
}

std::string text_of(const ReportTable& table, const std::string& indent, std::size_t width) {
  std::vector<Column> columns;
  for (std::size_t i = 0; i < table.columns().size(); ++i) columns.push_back(lay_out(table, i));
  fit(columns, width > indent.size() ? width - indent.size() : 0);

  std::string text = table.title().empty() ? "" : indent + one_line(table.title()) + "\n";
  text += line_of(columns, indent, [](const Column& c) { return c.heading; });
  text += line_of(columns, indent, [](const Column& c) { return std::string(c.width, '-'); });
  for (std::size_t row = 0; row < table.rows().size(); ++row) {
    text += line_of(columns, indent, [row](const Column& c) { return c.cells[row]; });
  }
  return text;
}

std::string text_of(const std::vector<Report::Fact>& facts, const std::string& indent) {
  std::size_t width = 0;
  for (const Report::Fact& fact : facts) width = std::max(width, display_width(one_line(fact.label)));
  std::string text;
  for (const Report::Fact& fact : facts) {
    std::string value = format_value(fact.value, fact.unit, decimals_for({&fact.value, 1}));
    if (fact.value.is_number() && !fact.unit.empty() && fact.unit != "bytes") value += " " + fact.unit;
    text += without_trailing_blanks(indent + pad(one_line(fact.label), width, Align::left) + std::string(kGap) + value);
    text += "\n";
  }
  return text;
}

std::string text_of(const Report::List& list, const std::string& indent) {
  std::string text = list.label.empty() ? "" : indent + one_line(list.label) + "\n";
  for (const std::string& item : list.items) text += indent + "- " + one_line(item) + "\n";
  return text;
}

std::string text_of(const Report& report, const std::string& outer, std::size_t width) {
  const std::string indent = report.title().empty() ? outer : outer + "  ";
  std::vector<std::string> blocks;
  if (!report.facts().empty()) blocks.push_back(text_of(report.facts(), indent));
  for (const Report::List& list : report.lists()) {
    if (!list.items.empty()) blocks.push_back(text_of(list, indent));
  }
  for (const ReportTable& table : report.tables()) {
    if (!table.rows().empty()) blocks.push_back(text_of(table, indent, width));
  }
  for (const Report::Section& section : report.sections()) blocks.push_back(text_of(section.report, indent, width));

  std::string text = report.title().empty() ? "" : outer + one_line(report.title()) + "\n";
  for (std::size_t i = 0; i < blocks.size(); ++i) text += (i == 0 ? "" : "\n") + blocks[i];
  return text;
}

}  // namespace

std::string Report::to_text(std::size_t width) const { return text_of(*this, "", width); }

}  // namespace pianola
