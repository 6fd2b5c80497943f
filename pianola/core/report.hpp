#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report_table.hpp>
#include <pianola/core/report_value.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace pianola {

/// What the library has to tell, for people (to_text) and for programs (to_json): facts, lists, tables, sections.
/// Each part has a key, which is its name in JSON and stays the same, and a label, which is for reading.
///
///     Report report("Graph");
///     report.fact("backend", "backend", "cuda").fact("pool_bytes", "pool", 2097152, "bytes");
///     report.table(ReportTable("types", "Nodes by type", {{"type"}, {"nodes"}}).row({"kernel", 41}).row({"memset",
///     2}));
///
///     Graph
///       backend  cuda
///       pool     2.0 MiB
///
///       Nodes by type
///       type    nodes
///       ------  -----
///       kernel     41
///       memset      2
///
///     {"backend": "cuda", "pool_bytes": 2097152, "types": [{"type": "kernel", "nodes": 41}, ...]}
///
/// Facts are printed first, then lists, tables and sections, each kind in the order in which it was added.
class PIANOLA_API Report {
 public:
  struct Fact {
    std::string key;
    std::string label;
    ReportValue value;
    std::string unit;
  };
  struct List {
    std::string key;
    std::string label;
    std::vector<std::string> items;
  };
  struct Section;

  /// @param title  First line of the text; empty: there is none.
  explicit Report(std::string title = {});
  Report(const Report&);
  Report& operator=(const Report&);
  Report(Report&&) noexcept;
  Report& operator=(Report&&) noexcept;
  ~Report();

  /// Adds a value with a name. `unit` is shown after a number; "bytes" makes text print KiB, MiB ... instead, while
  /// JSON has the plain number, so that keys should say the unit ("pool_bytes").
  ///
  /// @throws UsageError  The key is empty or was used in this report (also: by a list, a table, a section).
  Report& fact(std::string key, std::string label, ReportValue value, std::string unit = {});
  /// Adds sentences, such as warnings. An empty list shows in JSON only. @throws UsageError  As fact().
  Report& list(std::string key, std::string label, std::vector<std::string> items);
  /// Adds a table; one without rows shows in JSON only. @throws UsageError  As fact().
  Report& table(ReportTable table);
  /// Adds a report inside this one, printed indented under its own title. @throws UsageError  As fact().
  Report& section(std::string key, Report report);

  [[nodiscard]] const std::string& title() const noexcept { return title_; }
  [[nodiscard]] const std::vector<Fact>& facts() const noexcept { return facts_; }
  [[nodiscard]] const std::vector<List>& lists() const noexcept { return lists_; }
  [[nodiscard]] const std::vector<ReportTable>& tables() const noexcept { return tables_; }
  [[nodiscard]] const std::vector<Section>& sections() const noexcept { return sections_; }
  /// The keys of all parts in the order of adding, which is the order of JSON.
  [[nodiscard]] const std::vector<std::string>& keys() const noexcept { return keys_; }

  /// Aligned text in UTF-8 that ends with a line break. Where a table is wider than `width` its widest columns of text
  /// are shortened by "…"; numbers never are.
  [[nodiscard]] std::string to_text(std::size_t width = 100) const;
  /// One JSON object, indented by `indent` blanks, or on one line if that is negative. Titles and labels are left out;
  /// numbers are numbers, and null where they are not finite; bytes that are not UTF-8 become U+FFFD.
  [[nodiscard]] std::string to_json(int indent = 2) const;

 private:
  void claim(const std::string& key);

  std::string title_;
  std::vector<Fact> facts_;
  std::vector<List> lists_;
  std::vector<ReportTable> tables_;
  std::vector<Section> sections_;
  std::vector<std::string> keys_;
};

/// A report inside a report.
struct Report::Section {
  std::string key;
  Report report;
};

}  // namespace pianola
