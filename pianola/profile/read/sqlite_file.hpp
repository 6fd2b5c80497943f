#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace pianola::profiling {

class SqliteFile;

/// What a statement finds, row by row.
class SqliteRows {
 public:
  /// Begins anew, with this value for the statement's first parameter.
  void restart(std::int64_t parameter);
  /// Moves to the next row, at first to the first one; false: there is none.
  /// @throws UsageError  The file is cut off or damaged, or cannot be read.
  bool next();

  // Of the row at hand, by the column's place from 0.
  [[nodiscard]] bool has(int column) const;               ///< There is a value.
  [[nodiscard]] bool has_number(int column) const;        ///< And it is no text.
  [[nodiscard]] std::int64_t integer(int column) const;   ///< 0 where there is none.
  [[nodiscard]] std::string_view text(int column) const;  ///< Valid until the next one; empty where there is none.
  [[nodiscard]] std::size_t number() const noexcept { return number_; }  ///< Of the row at hand, from 1.

 private:
  friend class SqliteFile;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const noexcept;
  };
  SqliteRows(const SqliteFile& file, sqlite3_stmt* statement) : file_(&file), statement_(statement) {}

  const SqliteFile* file_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  std::size_t number_ = 0;
};

/// An SQLite file, to read. Nothing is written, neither to it nor beside it; nobody may change it meanwhile.
class SqliteFile {
 public:
  /// @throws UsageError  It cannot be opened, is no SQLite file, or is cut off.
  explicit SqliteFile(const std::filesystem::path& path);
  SqliteFile(SqliteFile&&) = delete;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// @throws UsageError  The file is no SQLite file, is cut off or damaged, or has no such table or column.
  [[nodiscard]] SqliteRows query(const std::string& statement) const;

 private:
  friend class SqliteRows;
  struct Close {
    void operator()(sqlite3* database) const noexcept;
  };
  void check_size(const std::filesystem::path& path);
  static int count_effort(void* file) noexcept;
  [[noreturn]] void refuse(int code) const;
  [[noreturn]] void refuse_damaged(const std::string& reason) const;

  std::string name_;
  std::uint64_t effort_ = 0, most_effort_ = 0;  // In pieces of kEffortPiece of SQLite's instructions.
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace pianola::profiling
