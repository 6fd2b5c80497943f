#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pianola::verification {

/// A run of addresses on a CUDA device.
struct Stretch {
  c10::DeviceIndex device = 0;
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
};

/// Where graphs keep what they make, at one moment: the memory that tapes fill, and on CUDA the private pools of torch's
/// allocator, whoever captured into them.
class GraphMemory {
 public:
  static GraphMemory now();

  [[nodiscard]] bool holds(const at::Tensor& tensor) const;

  /// Fills with NaN what no tensor holds there, and those of `results` that it holds, where they are floating-point. On
  /// CUDA it is bytes of 0xFF, which are NaN in every format, on the current stream; what is free there may hold numbers
  /// of any kind. A result that shares memory with one of `spared` is left alone.
  ///
  /// Returns why less than that was filled; empty where all was.
  std::string poison(std::span<const at::Tensor> results, std::span<const at::Tensor> spared) const;

 private:
  std::vector<Stretch> pools_, free_;
  std::string blind_;  // why CUDA's pools are not known
};

}  // namespace pianola::verification
