#pragma once
#include <cstdint>

namespace pianola::callable {

/// Torch's global settings that a function can read or that choose its kernels, besides those of Ambient: a graph freezes
/// what they were. Cheap to read and to compare.
struct TorchSettings {
  std::uint32_t flags = 0;       ///< Switches of algorithms, cuDNN, oneDNN and attention, a bit each.
  std::uint32_t precisions = 0;  ///< Of float32 and half products.
  int threads = 0;

  static TorchSettings current();
  friend bool operator==(const TorchSettings&, const TorchSettings&) = default;
};

}  // namespace pianola::callable
