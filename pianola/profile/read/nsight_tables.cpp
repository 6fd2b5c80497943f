#include <pianola/profile/read/nsight_tables.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::profiling {
namespace {

constexpr const char* kStrings = "StringIds";  // Every export has it.
constexpr const char* kMetaData = "META_DATA_EXPORT";

std::set<std::string, std::less<>> first_column(SqliteRows rows) {
  std::set<std::string, std::less<>> values;
  while (rows.next()) values.emplace(rows.text(0));
  return values;
}

}  // namespace

NsightTables::NsightTables(const std::filesystem::path& path)
    : file_(path), tables_(first_column(file_.query("SELECT name FROM sqlite_master WHERE type = 'table'"))) {
  if (has(kStrings, {"id", "value"})) return;
  throw UsageError({.what = fmt::format("'{}' is an SQLite file, but no export of Nsight Systems: it has no table {}",
                                        file_.name(), kStrings),
                    .fix = "name what `nsys export --type sqlite REPORT.nsys-rep` wrote"});
}

bool NsightTables::has(const char* table, std::initializer_list<const char*> columns) const {
  if (!has(table)) return false;
  const auto there = columns_of(table);
  return std::all_of(columns.begin(), columns.end(), [&](const char* column) { return there.contains(column); });
}

SqliteRows NsightTables::rows(const char* table, std::span<const NsightColumn> columns, const char* condition) const {
  const auto there = columns_of(table);
  std::string list;
  for (const NsightColumn& column : columns) {
    const bool found = there.contains(column.name);
    if (!found && column.needed) {
      throw UsageError(
          {.what = fmt::format("the export '{}' has no column '{}' in its table {}", file_.name(), column.name, table),
           .where = version(),
           .fix = "export the report again with a newer nsys: nsys export --type sqlite REPORT.nsys-rep"});
    }
    // "end" is a word of SQL; in double quotes it would be a text where there is no such column.
    list += fmt::format("{}{}", list.empty() ? "" : ", ", found ? fmt::format("[{}]", column.name) : "NULL");
  }
  return file_.query(fmt::format("SELECT {} FROM [{}] {}", list, table, condition));
}

std::string NsightTables::version() const {
  std::string product = "an unknown version of Nsight Systems", schema;
  if (!has(kMetaData, {"name", "value"})) return product;
  SqliteRows rows = file_.query(fmt::format("SELECT name, value FROM {}", kMetaData));
  while (rows.next()) {
    if (rows.text(0) == "EXPORT_PRODUCT_VERSION") product = fmt::format("Nsight Systems {}", rows.text(1));
    if (rows.text(0) == "EXPORT_SCHEMA_VERSION") schema = fmt::format(", schema {}", rows.text(1));
  }
  return product + schema;
}

std::set<std::string, std::less<>> NsightTables::columns_of(const char* table) const {
  return first_column(file_.query(fmt::format("SELECT name FROM pragma_table_info('{}')", table)));
}

}  // namespace pianola::profiling
