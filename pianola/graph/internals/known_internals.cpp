#include <pianola/core/error.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/internals.hpp>
#include <pianola/graph/internals/known_internals.hpp>
#include <pianola/graph/internals/trials.hpp>
#include <pianola/trace/call_site.hpp>

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/api/include/torch/version.h>

#if PIANOLA_WITH_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cuda_runtime_api.h>
#endif

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace pianola::graph {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostDevices = 256;  // of c10::DeviceIndex

// On the thread that tries: its captures ask for no trial.
thread_local bool tries = false;

struct Outcome {
  Internal internal;
  bool threw = false;
};

Outcome run(const Trial& trial, c10::Device device) {
  Outcome outcome{.internal = {.name = trial.name, .used_for = trial.used_for, .trouble = ""}};
  try {
    const std::optional<std::string> trouble = trial.run(device);
    outcome.internal.tried = trouble.has_value();
    outcome.internal.trouble = trouble.value_or("");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    outcome.threw = true;
    outcome.internal.trouble = "it failed: " + text.substr(0, text.find('\n'));
  }
  return outcome;
}

void run_all(c10::Device device, bool before_captures, std::vector<Outcome>& outcomes) {
  tries = true;
  const trace::CallSite::Off no_places;
  const c10::DeviceGuard on_device(device);
#if PIANOLA_WITH_CUDA
  std::optional<c10::cuda::CUDAStreamCaptureModeGuard> beside_captures;
  if (device.is_cuda()) beside_captures.emplace(cudaStreamCaptureModeRelaxed);
#endif
  for (const Trial& trial : trials()) {
    if (before_captures && !trial.before_captures) continue;
    if (device.is_cuda() || !trial.of_cuda_alone) outcomes.push_back(run(trial, device));
  }
}

// A thread of its own has no modes, no recordings, no streams of the caller's.
std::vector<Outcome> try_all(c10::Device device, bool before_captures) {
  std::vector<Outcome> outcomes;
  std::exception_ptr failure;
  try {
    std::thread([&] {
      try {
        run_all(device, before_captures, outcomes);
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure) std::rethrow_exception(failure);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DeviceError(
        {.what = fmt::format("what torch has inside cannot be tried on {}: {}", device.str(), error.what())});
  }
  return outcomes;
}

// A library is known by where it lies, its size and the time it was made.
std::string library_of(const void* symbol) {
  Dl_info info = {};
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "unknown";
  std::error_code failed;
  const fs::path file = fs::canonical(info.dli_fname, failed);
  const auto bytes = fs::file_size(file, failed);
  const auto made = fs::last_write_time(file, failed).time_since_epoch().count();
  return failed ? std::string(info.dli_fname) : fmt::format("{} {} {}", file.string(), bytes, made);
}

// Of torch's half for CUDA, and of what stands for the device.
std::string about_device(c10::Device device) {
#if PIANOLA_WITH_CUDA
  if (device.is_cuda()) {
    int driver = 0;
    cudaDeviceProp properties{};
    (void)cudaDriverGetVersion(&driver);
    (void)cudaGetDeviceProperties(&properties, device.index());
    return fmt::format("{}\n{}\n{} {}.{} driver {} allocator {}",
                       library_of(reinterpret_cast<const void*>(&c10::cuda::device_count)),
                       library_of(reinterpret_cast<const void*>(&at::cuda::getCurrentCUDABlasHandle)), properties.name,
                       properties.major, properties.minor, driver, c10::cuda::CUDACachingAllocator::get()->name());
  }
#endif
  return device.str();
}

bool is_noted(const fs::path& note) {
  std::error_code failed;
  return !note.empty() && fs::exists(note, failed);
}

// Where it cannot be written, the next process tries again.
void write(const fs::path& note, const std::string& identity) {
  if (note.empty()) return;
  std::error_code failed;
  fs::create_directories(note.parent_path(), failed);
  const fs::path draft = fmt::format("{}.{}", note.string(), getpid());
  std::ofstream(draft) << identity << '\n';
  fs::rename(draft, note, failed);
}

Diagnosis explain(const Internal& moved) {
  return {
      .what = fmt::format("this torch ({}) has changed inside: {}: {}", TORCH_VERSION, moved.name, moved.trouble),
      .where = fmt::format("what Pianola uses for: {}", moved.used_for),
      .fix =
          "use a version of torch that Pianola knows, from 2.11 on; 'pianola info --check' shows all that has moved"};
}

constexpr Diagnosis* kUnknown = nullptr;
Diagnosis sound;  // its address says that all is well

// kUnknown: nothing could be tried, and the next capture has another try. What is wrong is never destroyed.
const Diagnosis* look(c10::Device device) {
  const std::string identity = build_identity(device);
  const fs::path note = note_of(identity);
  if (is_noted(note)) return &sound;
  std::vector<Outcome> outcomes;
  try {
    outcomes = try_all(device, /*before_captures=*/true);
  } catch (const Error&) {
    return kUnknown;  // the capture will meet it, too
  }
  bool all_tried = true;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.threw && !outcome.internal.trouble.empty()) return new Diagnosis(explain(outcome.internal));
    all_tried = all_tried && !outcome.threw && outcome.internal.tried;
  }
  if (all_tried) write(note, identity);
  return &sound;
}

}  // namespace

std::string build_identity(c10::Device device) {
  return fmt::format("torch {}\npianola {}\n{}", library_of(reinterpret_cast<const void*>(&at::globalContext)),
                     library_of(reinterpret_cast<const void*>(&require_known_internals)), about_device(device));
}

fs::path note_of(const std::string& identity) {
  fs::path folder;
  if (const char* caches = std::getenv("XDG_CACHE_HOME"); caches != nullptr && fs::path(caches).is_absolute()) {
    folder = caches;
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    folder = fs::path(home) / ".cache";
  } else {
    return {};
  }
  return folder / "pianola" / fmt::format("internals-{:016x}", std::hash<std::string>()(identity));
}

// No lock: a child that is forked while another thread tries must not wait for it. Two threads may try at once.
void require_known_internals(c10::Device device) {
  if (tries) return;
  static std::array<std::atomic<const Diagnosis*>, 1 + kMostDevices> verdicts{};
  std::atomic<const Diagnosis*>& verdict = verdicts[device.is_cpu() ? 0 : 1 + static_cast<std::size_t>(device.index())];
  const Diagnosis* found = verdict.load(std::memory_order_acquire);
  if (found == kUnknown) verdict.store(found = look(device), std::memory_order_release);
  if (found != kUnknown && found != &sound) throw UnsupportedError(*found);
}

}  // namespace pianola::graph

namespace pianola {

std::vector<Internal> check_internals(c10::Device device) {
  std::vector<Internal> internals;
  for (graph::Outcome& outcome : graph::try_all(graph::usable_device(device), /*before_captures=*/false)) {
    internals.push_back(std::move(outcome.internal));
  }
  return internals;
}

}  // namespace pianola
