// The entry of libpianola_profiler.so, which CUDA's driver loads into a program that is to be recorded.
#include <pianola/core/export.hpp>
#include <pianola/profile/read/recorder_status.hpp>
#include <pianola/profile/read/recording_format.hpp>
#include <pianola/profile/record/activity_api.hpp>
#include <pianola/profile/record/activity_recorder.hpp>
#include <pianola/profile/record/recorder_environment.hpp>

#include <fmt/format.h>

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace pianola::profiling {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Not destroyed when the program ends: CUPTI is still at work then.
struct Injection {
  std::string folder = variable(kFolderVariable);
  std::uint32_t process_id = static_cast<std::uint32_t>(getpid());
  std::unique_ptr<ActivityRecorder> recorder;

  void tell(Diagnosis problem) const {
    write_status(folder, {.process_id = process_id, .problem = std::move(problem)});
  }
};

Injection& injection() {
  static auto& only = *new Injection;
  return only;
}

// As it was where the variable is no number.
template <class Number>
void read_number(const char* name, Number& number) {
  const std::string text = variable(name);
  std::from_chars(text.data(), text.data() + text.size(), number);
}

std::chrono::milliseconds milliseconds(const char* name) {
  std::int64_t count = 0;
  read_number(name, count);
  return std::chrono::milliseconds(count);
}

RecorderOptions options(const Injection& given) {
  RecorderOptions options;
  options.path = fmt::format("{}/{}{}", given.folder, given.process_id, kRecordingSuffix);
  read_number(kMostBytesVariable, options.max_bytes);
  options.delay = milliseconds(kDelayVariable);
  options.duration = milliseconds(kDurationVariable);
  options.ranges = std::getenv(kNvtxInjectionVariable) != nullptr;
  return options;
}

// At the end of the program. Not in a copy of it that it made by fork, which has neither the thread nor CUDA.
void stop_recording() noexcept {
  Injection& own = injection();
  if (own.recorder == nullptr || static_cast<std::uint32_t>(getpid()) != own.process_id) return;
  try {
    if (std::string problem = own.recorder->stop_at_exit(); !problem.empty()) own.tell({.what = std::move(problem)});
  } catch (const std::exception&) {  // out of memory: the recording has no end mark, which says enough
  }
}

void start_recording() {
  Injection& own = injection();
  if (own.folder.empty()) return;
  const ActivityApiOpening cupti = open_activity_api(variable(kCuptiVariable));
  if (!cupti.api) return own.tell(cupti.problem);
  ActivityRecorder::Opening opening = ActivityRecorder::start(*cupti.api, options(own));
  if (opening.recorder == nullptr) return own.tell(opening.problem);
  own.recorder = std::move(opening.recorder);
  std::atexit([] { stop_recording(); });
}

}  // namespace
}  // namespace pianola::profiling

/// Called by CUDA's driver when the program initialises it. Whatever happens, the program goes on: what keeps it from
/// being recorded is left as a status for the parent.
///
/// No signal is handled: a program that one ends leaves a recording without its last half second, or what filled no buffer.
extern "C" PIANOLA_API int InitializeInjection() {
  static std::once_flag once;
  try {
    std::call_once(once, [] { pianola::profiling::start_recording(); });
  } catch (const std::exception&) {  // out of memory, for the program as well
  }
  return 1;
}
