#include <pianola/profile/read/nsight_export.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/read/sqlite_magic.hpp>
#if PIANOLA_WITH_SQLITE
#include <pianola/profile/read/nsight_reader.hpp>
#include <pianola/profile/read/nsight_tables.hpp>
#endif

#include <fmt/format.h>

#include <string>
#include <system_error>

namespace pianola {
namespace {

void check(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    throw UsageError({.what = fmt::format("there is no file '{}'", file.string()), .fix = "check the path"});
  }
  if (!profiling::is_sqlite(file)) {
    throw UsageError({.what = fmt::format("'{}' is no SQLite file, or one that you may not read", file.string()),
                      .fix = "export the report again (nsys export --type sqlite REPORT.nsys-rep), and wait until that "
                             "has ended"});
  }
}

#if PIANOLA_WITH_SQLITE
void refuse_without_work(const Timeline& timeline, const profiling::NsightTables& tables, const std::string& name) {
  if (!timeline.work.empty()) return;
  throw UsageError({.what = fmt::format("the export '{}' has no work of a GPU: {} calls of CUDA and {} NVTX ranges",
                                        name, timeline.calls.size(), timeline.ranges.size()),
                    .where = tables.version(),
                    .fix = "record with `nsys profile --trace=cuda,nvtx COMMAND`, and with GPU work between its begin "
                           "and end"});
}
#endif

}  // namespace

#if PIANOLA_WITH_SQLITE
Timeline read_nsight_export(const std::filesystem::path& file) {
  check(file);
  const std::string name = file.string();
  Timeline timeline;
  timeline.source = fmt::format("Nsight Systems export '{}'", name);
  const profiling::NsightTables tables(file);
  profiling::NsightReader(tables, timeline).read();
  refuse_without_work(timeline, tables, name);
  return timeline;
}
#else
Timeline read_nsight_export(const std::filesystem::path& file) {
  check(file);
  throw UsageError({.what = fmt::format("'{}' is an SQLite file, and this build has no SQLite", file.string()),
                    .fix = "install SQLite's development files (apt-get install libsqlite3-dev) and build again with "
                           "make, since packages that pip builds do without; or record with torch.profiler"});
}
#endif

}  // namespace pianola
