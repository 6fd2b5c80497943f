#pragma once
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <cstdint>

namespace pianola::testing {

inline constexpr std::uint64_t kMiB = 1U << 20U;
inline constexpr std::int64_t kFloats = 1 << 18;  // a MiB

// For tests that count bytes: tensors of whole MiB on the device.
class MemoryDeviceTest : public DeviceTest {
 protected:
  static at::Tensor block(std::int64_t mib) { return at::empty({mib * kFloats}, device()); }
  static at::Tensor ones(std::int64_t mib) { return at::ones({mib * kFloats}, device()); }
};

}  // namespace pianola::testing
