#include <pianola/cuda/driver.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/error_codes.hpp>

#include <fmt/format.h>

#include <dlfcn.h>

#include <optional>
#include <string>

namespace pianola {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr const char* kUseTheCpu = "or use the CPU (device 'cpu'), where graphs run on the tape";

/// The driver, or why there is none.
struct Loaded {
  Driver driver = {};
  std::optional<Diagnosis> problem = {};
};

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Diagnosis too_old(int driver_version, const char* symbol, int needed) {
  const std::string found = driver_version > 0 ? "the driver is of CUDA " + version_text(driver_version) : "the driver";
  return {.what = fmt::format("{} and lacks {}, which came with CUDA {}", found, symbol, version_text(needed)),
          .fix = fmt::format("update the NVIDIA driver, {}", kUseTheCpu)};
}

template <class Function>
void bind(Function& member, PFN_cuGetProcAddress_v12000 get_proc, const char* symbol, int version, Loaded& loaded) {
  if (loaded.problem) return;
  void* address = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result = get_proc(symbol, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
  if (result == CUDA_SUCCESS && address != nullptr) {
    member = reinterpret_cast<Function>(address);
    return;
  }
  int driver_version = 0;
  if (loaded.driver.driver_get_version != nullptr) loaded.driver.driver_get_version(&driver_version);
  loaded.problem = too_old(driver_version, symbol, version);
}

Loaded load_driver() {
  Loaded loaded;
  void* library = dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL);  // Never closed: handles may be destroyed at exit.
  if (library == nullptr) {
    const char* reason = dlerror();
    loaded.problem = Diagnosis{.what = fmt::format("no CUDA driver: {}", reason != nullptr ? reason : kLibrary),
                               .fix = fmt::format("install the NVIDIA driver, {}", kUseTheCpu)};
    return loaded;
  }
  const auto get_proc = reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
  if (get_proc == nullptr) {
    loaded.problem = too_old(0, "cuGetProcAddress_v2", 12000);
    return loaded;
  }
#define PIANOLA_DRIVER_BIND(member, symbol, version) bind(loaded.driver.member, get_proc, #symbol, version, loaded);
  PIANOLA_DRIVER_ENTRY_POINTS(PIANOLA_DRIVER_BIND)
#undef PIANOLA_DRIVER_BIND
  if (loaded.problem) return loaded;
  const CUresult result = loaded.driver.init(0);
  if (result != CUDA_SUCCESS) loaded.problem = diagnose(result, "cuInit");
  return loaded;
}

const Loaded& loaded() {
  static const Loaded once = load_driver();
  return once;
}

}  // namespace

const Driver& Driver::get() {
  const Loaded& result = loaded();
  if (result.problem) throw DeviceError(*result.problem);
  return result.driver;
}

const Driver* Driver::try_get() noexcept { return loaded().problem ? nullptr : &loaded().driver; }

}  // namespace pianola
