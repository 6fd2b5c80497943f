#include <pianola/profile/profile.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/account/memory_left.hpp>
#include <pianola/profile/read/chrome_document.hpp>
#include <pianola/profile/read/chrome_trace.hpp>
#include <pianola/profile/read/read_profile.hpp>
#include <pianola/profile/show/html_report.hpp>
#include <pianola/profile/show/profile_report.hpp>
#include <pianola/profile/show/trace_sink.hpp>

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <fmt/format.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

// As in torch/csrc/profiler/kineto_shim.h, which includes a header of kineto that torch's wheels do not have.
namespace torch::autograd::profiler {
TORCH_API void addMetadataJson(const std::string& key, const std::string& value);
}

namespace pianola {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

void check(const ProfileOptions& options) {
  if (options.warmup < 0) {
    throw UsageError({.what = fmt::format("warmup must be 0 or more, got {}", options.warmup)});
  }
  if (options.iterations < 1) {
    throw UsageError({.what = fmt::format("iterations must be 1 or more, got {}", options.iterations)});
  }
  // Preparing one would end the other's recording.
  if (torch::profiler::impl::profilerEnabled()) {
    throw UsageError({.what = "torch's profiler cannot record: one is active already",
                      .fix = "end the profiler that is active before this call"});
  }
}

c10::Device device_of_steps() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice(); }

void wait_for_device() {
  if (!at::globalContext().hasCUDA()) return;
  c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(device_of_steps().index());
}

// While it lives, torch's profiler records.
class Recording {
 public:
  explicit Recording(const ProfileOptions& options) {
    const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/false,
                                /*profile_memory=*/options.memory, /*with_stack=*/options.modules,
                                /*with_flops=*/false, /*with_modules=*/options.modules);
    std::set<ActivityType> activities = {ActivityType::CPU};
    if (at::globalContext().hasCUDA()) activities.insert(ActivityType::CUDA);
    kineto::prepareProfiler(config, activities);
    kineto::enableProfiler(config, activities);
    active_ = true;
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    try {
      if (active_) (void)kineto::disableProfiler();
    } catch (...) {  // the step's own exception is the one to tell
    }
  }
  std::unique_ptr<kineto::ProfilerResult> end() {
    active_ = false;
    return kineto::disableProfiler();
  }

 private:
  bool active_ = false;
};

// A file of our own, gone in the end.
class TemporaryTrace {
 public:
  TemporaryTrace() {
    static std::atomic<unsigned> number{0};
    path_ = std::filesystem::temp_directory_path() / fmt::format("pianola_profile_{}_{}.json", ::getpid(), ++number);
  }
  TemporaryTrace(const TemporaryTrace&) = delete;
  TemporaryTrace& operator=(const TemporaryTrace&) = delete;
  ~TemporaryTrace() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

[[noreturn]] void throw_cannot_write(const std::filesystem::path& file) {
  throw UsageError({.what = fmt::format("cannot write the trace '{}'", file.string())});
}

// Kineto says nothing where it cannot write.
void save(kineto::ProfilerResult& result, const std::filesystem::path& file) {
  result.save(file.string());
  if (!std::filesystem::exists(file)) throw_cannot_write(file);
}

// Kineto compresses nothing, whatever a file is called.
void keep(const std::filesystem::path& trace, const std::filesystem::path& file) {
  const auto sink = profiling::TraceSink::open(file);
  if (!sink->is_open()) throw_cannot_write(file);
  std::ifstream from(trace, std::ios::binary);
  std::array<char, 1U << 16U> piece{};
  while (from.read(piece.data(), piece.size()) || from.gcount() > 0) {
    if (!sink->write({piece.data(), static_cast<std::size_t>(from.gcount())})) throw_cannot_write(file);
  }
  if (!sink->close()) throw_cannot_write(file);
}

// Of one of as many runs as are recorded later.
Nanoseconds time_unrecorded(const std::function<void()>& step, int runs) {
  wait_for_device();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < runs; ++i) step();
  wait_for_device();
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count() / runs;
}

// Becomes part of the trace, too.
void note_memory_left() {
  if (!at::globalContext().hasCUDA()) return;
  const c10::Device device = device_of_steps();
  const std::optional<memory::FreeMemory> left = memory_left(device);
  if (!left) return;
  kineto::addMetadataJson(std::string(profiling::kMemoryLeftKey), profiling::memory_left_text(device.index(), *left));
}

// `unrecorded` becomes part of the trace, so that it is judged alike when it is read again.
Timeline record(const std::function<void()>& step, const ProfileOptions& options, Nanoseconds unrecorded) {
  Recording recording(options);
  kineto::addMetadataJson(std::string(profiling::kUnrecordedKey), fmt::to_string(unrecorded));
  if (options.memory) note_memory_left();
  for (int i = 0; i < options.iterations; ++i) {
    RECORD_USER_SCOPE(kProfiledStep);
    step();
  }
  wait_for_device();
  const auto result = recording.end();
  const TemporaryTrace temporary;
  save(*result, temporary.path());
  if (!options.trace.empty()) keep(temporary.path(), options.trace);
  return read_chrome_trace(temporary.path());
}

}  // namespace

Profile judge(Timeline timeline, const AnalysisOptions& options) {
  Profile made{.timeline = std::move(timeline), .analysis = {}, .decision = {}};
  made.analysis = analyse(made.timeline, options);
  made.decision = decide(made.timeline, made.analysis);
  return made;
}

Profile profile(const std::function<void()>& step, const ProfileOptions& options) {
  check(options);
  for (int i = 0; i < options.warmup; ++i) step();
  const Nanoseconds unrecorded = time_unrecorded(step, options.iterations);
  Timeline timeline = record(step, options, unrecorded);
  timeline.source = fmt::format("{} runs of a step", options.iterations);
  return judge(std::move(timeline), {.range = kProfiledStep});
}

Profile load_profile(const std::filesystem::path& path, const AnalysisOptions& options) {
  return judge(read_profile(path), options);
}

std::string Profile::to_text(std::size_t width) const {
  return profile_report(timeline, analysis, decision).to_text(width);
}
std::string Profile::to_json() const { return profile_report(timeline, analysis, decision).to_json(); }
std::string Profile::to_html() const { return pianola::to_html(timeline, analysis, decision); }

}  // namespace pianola
