#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace pianola::trace {

/// Where tensors lie, by addresses: two storages may share memory (numpy, DLPack). Tensors without memory lie nowhere.
class MemoryRanges {
 public:
  /// What the tensor itself covers; it is strided.
  void add(const at::Tensor& tensor);
  /// All that its storage covers.
  void add_storage_of(const at::Tensor& tensor);

  [[nodiscard]] bool empty() const noexcept { return ranges_.empty(); }
  [[nodiscard]] bool overlap_each_other() const;
  [[nodiscard]] bool overlap(const MemoryRanges& others) const;

 private:
  using Range = std::pair<std::uintptr_t, std::uintptr_t>;  // from the first byte to behind the last
  [[nodiscard]] std::vector<Range> in_order() const;

  std::vector<Range> ranges_;
};

}  // namespace pianola::trace
