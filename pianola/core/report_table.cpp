#include <pianola/core/report_table.hpp>

#include <pianola/core/error.hpp>

#include <set>
#include <utility>

namespace pianola {

ReportTable::ReportTable(std::string key, std::string title, std::vector<ReportColumn> columns)
    : key_(std::move(key)), title_(std::move(title)), columns_(std::move(columns)) {
  if (columns_.empty()) throw UsageError({.what = "table '" + key_ + "' has no columns"});
  std::set<std::string> seen;
  for (const ReportColumn& column : columns_) {
    if (column.key.empty()) throw UsageError({.what = "a column of table '" + key_ + "' has no key"});
    if (!seen.insert(column.key).second) {
      throw UsageError({.what = "table '" + key_ + "' has two columns with the key '" + column.key + "'"});
    }
  }
}

ReportTable& ReportTable::row(Row values) {
  if (values.size() != columns_.size()) {
    throw UsageError({.what = "a row of table '" + key_ + "' must have " + std::to_string(columns_.size()) +
                              " values, got " + std::to_string(values.size())});
  }
  rows_.push_back(std::move(values));
  return *this;
}

}  // namespace pianola
