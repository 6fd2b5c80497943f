#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report_value.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace pianola {

/// A column of a table in a report.
struct ReportColumn {
  std::string key;         ///< Name in JSON: stable, snake_case, with the unit in it ("host_us").
  std::string label = {};  ///< Heading in text; empty: the key.
  std::string unit = {};   ///< Shown with the heading; "bytes" is special, see Report::fact.
  int decimals = -1;       ///< Digits after the point in text; negative: as many as the smallest number needs.
};

/// Rows under named columns. In text, columns of numbers are right-aligned and their decimal points stand in a line.
///
///     ReportTable table("modes", "", {{"mode"}, {"steps_per_s", "steps/s"}, {"host_us", "host", "us"}});
///     table.row({"eager", 171.2, 5841.0}).row({"replay", 1886.5, 4.1});
class PIANOLA_API ReportTable {
 public:
  using Row = std::vector<ReportValue>;

  /// @param title  Printed above the table; empty: nothing is.
  /// @throws UsageError  There is no column, or two have the same key, or one has none.
  ReportTable(std::string key, std::string title, std::vector<ReportColumn> columns);

  /// @throws UsageError  The row has not one value per column.
  ReportTable& row(Row values);

  [[nodiscard]] const std::string& key() const noexcept { return key_; }
  [[nodiscard]] const std::string& title() const noexcept { return title_; }
  [[nodiscard]] const std::vector<ReportColumn>& columns() const noexcept { return columns_; }
  [[nodiscard]] const std::vector<Row>& rows() const noexcept { return rows_; }

 private:
  std::string key_;
  std::string title_;
  std::vector<ReportColumn> columns_;
  std::vector<Row> rows_;
};

}  // namespace pianola
