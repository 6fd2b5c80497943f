#pragma once
#include <pianola/cuda/driver.hpp>

namespace pianola {

/// Whether CUDA knows memory at this address: a device's, or pinned.
[[nodiscard]] inline bool is_device_address(CUdeviceptr address, const Driver& driver = Driver::get()) {
  unsigned type = 0;
  return driver.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS;
}

}  // namespace pianola
