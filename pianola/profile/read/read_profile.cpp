#include <pianola/profile/read/read_profile.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/read/chrome_trace.hpp>
#include <pianola/profile/read/recording.hpp>
#include <pianola/profile/read/sqlite_magic.hpp>

#include <fmt/format.h>

#include <exception>
#include <new>
#include <system_error>

namespace pianola {
namespace {

bool is_there(const std::filesystem::path& path) {
  std::error_code unreadable;
  return std::filesystem::exists(path, unreadable);
}

/// Nsight Systems alone reads its reports.
void refuse_report(const std::filesystem::path& path) {
  const bool report = path.extension() == ".nsys-rep" || path.extension() == ".qdrep";  // Until 2021.
  if (!report || !is_there(path)) return;
  const std::string exported = std::filesystem::path(path).replace_extension(".sqlite").string();
  throw UsageError(
      {.what = fmt::format("'{}' is a report of Nsight Systems, which has to be exported first", path.string()),
       .fix = fmt::format("nsys export --type sqlite --output '{}' '{}', then name '{}'", exported, path.string(),
                          exported)});
}

/// Python has SQLite, this library has not.
void refuse_export(const std::filesystem::path& path) {
  if (!profiling::is_sqlite(path)) return;
  throw UsageError({.what = fmt::format("'{}' is an export of Nsight Systems, which Python reads", path.string()),
                    .fix = fmt::format("pianola decide '{}', where there is a Python (PIANOLA_PYTHON names it), or "
                                       "pianola.decide() in Python",
                                       path.string())});
}

Timeline read_whatever_it_is(const std::filesystem::path& path) {
  std::error_code unreadable;
  if (std::filesystem::is_directory(path, unreadable)) return read_recordings(path.string());
  refuse_report(path);
  refuse_export(path);
  return read_chrome_trace(path);
}

[[noreturn]] void refuse(const std::filesystem::path& path, const char* reason) {
  throw UsageError({.what = fmt::format("the profile '{}' cannot be read: {}", path.string(), reason),
                    .fix = "record less at a time; or the file was damaged: record it again"});
}

}  // namespace

// What the readers themselves find names the file already.
Timeline read_profile(const std::filesystem::path& path) {
  try {
    return read_whatever_it_is(path);
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    refuse(path, "its content does not fit into memory");
  } catch (const std::exception& error) {
    refuse(path, error.what());
  }
}

}  // namespace pianola
