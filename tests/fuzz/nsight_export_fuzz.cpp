// Exports of Nsight Systems, which are SQLite files.
#include <tests/fuzz/fuzz_target.hpp>
#include <tests/fuzz/judged_timeline.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/read/nsight_export.hpp>

using namespace pianola;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::InputFile file(".sqlite");
  Timeline timeline;
  try {
    timeline = read_nsight_export(file.write(data, size));
  } catch (const UsageError&) {
    return 0;
  }
  fuzz::judge(timeline, size % 8 == 0);
  return 0;
}
