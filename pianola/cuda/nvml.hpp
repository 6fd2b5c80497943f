#pragma once
#include <pianola/cuda/memory_account.hpp>

#include <optional>

namespace pianola {

/// Memory of a device as NVIDIA's management library tells it, which wants no context of this process: all processes' together.
/// nullopt where there is no such library, or it does not know the device.
/// @param pci_bus_id  As cudaDeviceGetPCIBusId() returns it.
[[nodiscard]] std::optional<DeviceMemory> device_memory_by_nvml(const char* pci_bus_id);

}  // namespace pianola
