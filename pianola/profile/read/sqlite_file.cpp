#include <pianola/profile/read/sqlite_file.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>
#include <sqlite3.h>

#include <iterator>
#include <system_error>
#include <utility>

namespace pianola::profiling {
namespace {

// Exports have some ten instructions for a row of a hundred bytes, and texts of a few thousand bytes at most.
constexpr int kEffortPiece = 100'000;
constexpr std::uint64_t kFreeEffort = 200, kEffortPerByte = 50;
constexpr int kLongestValue = 16 << 20;

// As a URI, which alone can say that nobody changes the file: then SQLite locks nothing and looks for no journal.
std::string uri_of(const std::filesystem::path& path) {
  constexpr std::string_view kPlain = "/._-~abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::string uri = "file://";
  for (const char c : std::filesystem::absolute(path).string()) {
    if (kPlain.find(c) != std::string_view::npos) {
      uri.push_back(c);
    } else {
      fmt::format_to(std::back_inserter(uri), "%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return uri + "?immutable=1";
}

}  // namespace

void SqliteRows::Finalize::operator()(sqlite3_stmt* statement) const noexcept { (void)sqlite3_finalize(statement); }

void SqliteFile::Close::operator()(sqlite3* database) const noexcept { (void)sqlite3_close(database); }

void SqliteRows::restart(std::int64_t parameter) {
  number_ = 0;
  (void)sqlite3_reset(statement_.get());  // Its code is that of the last step, which next() told.
  const int code = sqlite3_bind_int64(statement_.get(), 1, parameter);
  if (code != SQLITE_OK) file_->refuse(code);
}

bool SqliteRows::next() {
  const int code = sqlite3_step(statement_.get());
  if (code != SQLITE_ROW && code != SQLITE_DONE) file_->refuse(code);
  ++number_;
  return code == SQLITE_ROW;
}

bool SqliteRows::has(int column) const { return sqlite3_column_type(statement_.get(), column) != SQLITE_NULL; }

bool SqliteRows::has_number(int column) const {
  const int type = sqlite3_column_type(statement_.get(), column);
  return type == SQLITE_INTEGER || type == SQLITE_FLOAT;
}

std::int64_t SqliteRows::integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }

std::string_view SqliteRows::text(int column) const {
  const unsigned char* text = sqlite3_column_text(statement_.get(), column);
  if (text == nullptr) return {};
  return {reinterpret_cast<const char*>(text),
          static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

SqliteFile::SqliteFile(const std::filesystem::path& path) : name_(path.string()) {
  sqlite3* database = nullptr;
  const int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(uri_of(path).c_str(), &database, flags, nullptr);
  database_.reset(database);
  if (code != SQLITE_OK) refuse(code);
  // A file may come from anywhere: what its schema calls is not run, a page has to hold what it says, and what SQLite allocates
  // for one value or does altogether is bounded: the pages of a damaged file may form a ring, and its rows never end.
  (void)sqlite3_db_config(database, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  (void)sqlite3_exec(database, "PRAGMA cell_size_check = ON", nullptr, nullptr, nullptr);
  (void)sqlite3_limit(database, SQLITE_LIMIT_LENGTH, kLongestValue);
  sqlite3_progress_handler(database, kEffortPiece, &SqliteFile::count_effort, this);
  check_size(path);
}

/// SQLite notes a missing page when it gets there, but takes what a last page lacks for zeros.
void SqliteFile::check_size(const std::filesystem::path& path) {
  most_effort_ = kFreeEffort;
  SqliteRows rows = query("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size");
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::file_size(path, unknown);
  if (!unknown) most_effort_ += bytes * kEffortPerByte / kEffortPiece;
  if (!unknown && rows.next() && std::cmp_less(bytes, rows.integer(0))) refuse_damaged("its last page is not whole");
}

/// Anything but 0 ends what SQLite does.
int SqliteFile::count_effort(void* file) noexcept {
  auto& self = *static_cast<SqliteFile*>(file);
  return ++self.effort_ > self.most_effort_ ? 1 : 0;
}

SqliteRows SqliteFile::query(const std::string& statement) const {
  sqlite3_stmt* prepared = nullptr;
  const int code = sqlite3_prepare_v2(database_.get(), statement.c_str(), -1, &prepared, nullptr);
  SqliteRows rows(*this, prepared);
  if (code != SQLITE_OK) refuse(code);
  return rows;
}

void SqliteFile::refuse(int code) const {
  if (code == SQLITE_INTERRUPT) refuse_damaged("its tables hold more than a file of this size can");
  const std::string reason =
      fmt::format("SQLite says '{}'", database_ ? sqlite3_errmsg(database_.get()) : sqlite3_errstr(code));
  if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) refuse_damaged(reason);
  throw UsageError({.what = fmt::format("'{}' cannot be read: {}", name_, reason),
                    .fix = "check that you may read the file, and that it is a whole export of nsys"});
}

void SqliteFile::refuse_damaged(const std::string& reason) const {
  throw UsageError({.what = fmt::format("'{}' is cut off or damaged: {}", name_, reason),
                    .fix = "export the report again (nsys export --type sqlite REPORT.nsys-rep), and wait until that "
                           "has ended"});
}

}  // namespace pianola::profiling
