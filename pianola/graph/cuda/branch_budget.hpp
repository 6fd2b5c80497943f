#pragma once
#include <c10/core/Device.h>

#include <cstddef>

namespace pianola::graph {

/// A share of the memory that lanes which nobody asked for may take on a device, all graphs of the process together: 256 MiB, or a
/// tenth of the most that was ever allocated at once, whichever is more. Who comes first is served first.
class BranchBudget {
 public:
  /// Nothing of it.
  BranchBudget() = default;
  /// All that is left.
  explicit BranchBudget(c10::Device device);
  BranchBudget(BranchBudget&& other) noexcept;
  BranchBudget& operator=(BranchBudget&& other) noexcept;
  ~BranchBudget() { keep(0); }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Gives back what is not needed.
  void keep(std::size_t bytes) noexcept;

 private:
  c10::DeviceIndex device_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace pianola::graph
