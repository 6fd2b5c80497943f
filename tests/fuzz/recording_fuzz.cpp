// Recordings of `pianola profile`.
#include <tests/fuzz/fuzz_target.hpp>
#include <tests/fuzz/judged_timeline.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/read/recording.hpp>

using namespace pianola;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::InputFile file(".pianola");
  Timeline timeline;
  try {
    timeline = read_recording(file.write(data, size));
  } catch (const UsageError&) {
    return 0;
  }
  fuzz::judge(timeline, size % 8 == 0);
  return 0;
}
