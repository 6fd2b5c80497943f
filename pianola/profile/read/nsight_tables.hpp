#pragma once
#include <pianola/profile/read/sqlite_file.hpp>

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <set>
#include <span>
#include <string>

namespace pianola::profiling {

/// A column of a table, as Nsight Systems names it.
struct NsightColumn {
  const char* name;
  bool needed = true;  ///< Else every version may lack it, and then no row has a value.
};

/// The tables of an export of Nsight Systems. It makes only those that it has something for, and what they hold differs
/// between versions.
class NsightTables {
 public:
  /// @throws UsageError  The file is no export of Nsight Systems, is cut off or damaged, or cannot be read.
  explicit NsightTables(const std::filesystem::path& path);

  [[nodiscard]] bool has(const char* table) const { return tables_.contains(table); }
  [[nodiscard]] bool has(const char* table, std::initializer_list<const char*> columns) const;

  /// The rows of a table, with values in the order of `columns`.
  /// @param condition    "WHERE ..."; empty: all.
  /// @throws UsageError  A column that is needed is missing.
  [[nodiscard]] SqliteRows rows(const char* table, std::span<const NsightColumn> columns,
                                const char* condition = "") const;
  [[nodiscard]] SqliteRows query(const std::string& statement) const { return file_.query(statement); }

  /// "Nsight Systems 2024.6.2.225, schema 3.16.1", as far as the file says it.
  [[nodiscard]] std::string version() const;

 private:
  [[nodiscard]] std::set<std::string, std::less<>> columns_of(const char* table) const;

  SqliteFile file_;
  std::set<std::string, std::less<>> tables_;
};

}  // namespace pianola::profiling
