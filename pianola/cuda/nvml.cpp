#include <pianola/cuda/nvml.hpp>

#include <pianola/cuda/library.hpp>

#include <array>

namespace pianola {
namespace {

// Of nvml.h, which no package of CUDA's headers on PyPI has: handles are opaque, and 0 is success.
using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};

struct Nvml {
  int (*init)() = nullptr;
  int (*device_of)(const char* pci_bus_id, Device* device) = nullptr;
  int (*memory_of)(Device device, Memory* memory) = nullptr;
};

// Initialized, for as long as the process lives.
const Nvml* nvml() {
  static const std::optional<Nvml> one = []() -> std::optional<Nvml> {
    constexpr std::array kNames = {"libnvidia-ml.so.1"};
    void* const library = find_library(kNames, {});
    if (library == nullptr) return std::nullopt;
    Nvml found;
    SymbolBinder symbols(library);
    symbols.bind(found.init, "nvmlInit_v2")
        .bind(found.device_of, "nvmlDeviceGetHandleByPciBusId_v2")
        .bind(found.memory_of, "nvmlDeviceGetMemoryInfo");
    if (symbols.missing() != nullptr || found.init() != 0) return std::nullopt;
    return found;
  }();
  return one ? &*one : nullptr;
}

}  // namespace

std::optional<DeviceMemory> device_memory_by_nvml(const char* pci_bus_id) {
  const Nvml* const library = nvml();
  Device device = nullptr;
  Memory memory{};
  if (library == nullptr || library->device_of(pci_bus_id, &device) != 0) return std::nullopt;
  if (library->memory_of(device, &memory) != 0) return std::nullopt;
  return DeviceMemory{.free_bytes = memory.free, .total_bytes = memory.total};
}

}  // namespace pianola
