#pragma once
#include <pianola/core/report.hpp>
#include <pianola/parallel/branch_info.hpp>

#include <string>
#include <utility>
#include <vector>

namespace pianola::callable {

/// What the option `branches` came to, a row per graph.
class BranchTable {
 public:
  /// @param key  Of the first column, which tells the graphs apart.
  explicit BranchTable(const std::string& key)
      : table_("branches", "Parallel branches",
               {{key},
                {"rebuilt"},
                {"lanes"},
                {"serial_us", "as captured", "us", 1},
                {"rebuilt_us", "rebuilt", "us", 1},
                {"reason", "why not"}}) {}

  void row(std::string name, const BranchInfo& info) {
    const auto measured = [](double us) { return us > 0 ? ReportValue(us) : ReportValue(); };
    table_.row({std::move(name), info.rebuilt, info.lanes, measured(info.serial_us), measured(info.rebuilt_us),
                info.reason.empty() ? ReportValue() : ReportValue(info.reason)});
  }

  /// Nothing where there is no row.
  void add_to(Report& report) const {
    if (!table_.rows().empty()) report.table(table_);
  }

 private:
  ReportTable table_;
};

/// The report of calls by signature, which `signatures` describes: why some stay eager, and their tables.
template <typename Infos>
void add_calls(Report& report, const Infos& signatures, const std::vector<std::string>& unfollowed, ReportTable table,
               const BranchTable& branches) {
  std::vector<std::string> reasons;
  for (const auto& one : signatures) {
    if (!one.reason.empty()) reasons.push_back(one.signature + ": " + one.reason);
  }
  report.list("reasons", "Why calls stay eager, or were captured again", std::move(reasons));
  report.list("unfollowed", "Read on the host, and not compared", unfollowed);
  report.table(std::move(table));
  branches.add_to(report);
}

}  // namespace pianola::callable
