#include <pianola/core/error.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/internals.hpp>
#include <pianola/graph/internals/known_internals.hpp>
#include <pianola/graph/internals/trials.hpp>

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/api/include/torch/version.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cuda_runtime_api.h>
#endif

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace pianola::graph {
namespace {

namespace fs = std::filesystem;

// On the thread that tries: its captures ask for no trial.
thread_local bool tries = false;

std::string run(const Trial& trial, c10::Device device) {
  try {
    return trial.run(device);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return "it failed: " + text.substr(0, text.find('\n'));
  }
}

// A thread of its own has no modes, no recordings, no streams of the caller's.
std::vector<Internal> try_all(c10::Device device, bool before_captures) {
  std::vector<Internal> internals;
  std::thread([&] {
    tries = true;
    const c10::DeviceGuard on_device(device);
#if PIANOLA_WITH_CUDA
    std::optional<c10::cuda::CUDAStreamCaptureModeGuard> beside_captures;
    if (device.is_cuda()) beside_captures.emplace(cudaStreamCaptureModeRelaxed);
#endif
    for (const Trial& trial : trials_of(device)) {
      if (before_captures && !trial.before_captures) continue;
      internals.push_back({.name = trial.name, .used_for = trial.used_for, .trouble = run(trial, device)});
    }
  }).join();
  return internals;
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

std::string driver_and_device(c10::Device device) {
#if PIANOLA_WITH_CUDA
  if (device.is_cuda()) {
    int driver = 0;
    cudaDeviceProp properties{};
    if (cudaDriverGetVersion(&driver) == cudaSuccess &&
        cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess)
      return fmt::format("{} {}.{} driver {}", properties.name, properties.major, properties.minor, driver);
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

// What is wrong on a device; nothing where all is well.
std::optional<Diagnosis> look(c10::Device device) {
  const std::string identity = build_identity(device);
  const fs::path note = note_of(identity);
  if (is_noted(note)) return std::nullopt;
  for (const Internal& internal : try_all(device, /*before_captures=*/true)) {
    if (!internal.trouble.empty()) return explain(internal);
  }
  write(note, identity);
  return std::nullopt;
}

}  // namespace

std::string build_identity(c10::Device device) {
  return fmt::format("torch {}\npianola {}\n{}", library_of(reinterpret_cast<const void*>(&at::globalContext)),
                     library_of(reinterpret_cast<const void*>(&require_known_internals)), driver_and_device(device));
}

fs::path note_of(const std::string& identity) {
  fs::path folder;
  if (const char* caches = std::getenv("XDG_CACHE_HOME"); caches != nullptr && *caches != '\0') {
    folder = caches;
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    folder = fs::path(home) / ".cache";
  } else {
    return {};
  }
  return folder / "pianola" / fmt::format("internals-{:016x}", std::hash<std::string>()(identity));
}

void require_known_internals(c10::Device device) {
  if (tries) return;
  static std::mutex mutex;
  static std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::optional<Diagnosis>> looked;
  const std::lock_guard lock(mutex);
  const auto key = std::pair(device.type(), device.index());
  auto found = looked.find(key);
  if (found == looked.end()) found = looked.emplace(key, look(device)).first;
  if (found->second) throw UnsupportedError(*found->second);
}

}  // namespace pianola::graph

namespace pianola {

std::vector<Internal> check_internals(c10::Device device) {
  return graph::try_all(graph::usable_device(device), /*before_captures=*/false);
}

}  // namespace pianola
