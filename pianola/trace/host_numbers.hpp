#pragma once
#include <pianola/trace/allocation_log.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/storage_set.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace pianola::trace {

// Note [Numbers that torch turns into tensors]
// `x[..., 0] = 7` reaches fill_() or index_put_() as a tensor of the CPU without dimensions, also where x is on a GPU. No
// operation makes it, and only the C++ frame of the assignment holds it: it looks like memory from outside that is gone
// after the call. But torch's allocator handed it out in this very step, and not to an operation. So it holds what the host
// wrote there: a number like the 7 of `x + 7`, which the kernels of a GPU are given by value. As such it is logged and
// compared between calls, and a tape keeps a copy. Memory that NumPy shares was handed out by others, a tensor that
// somebody keeps was handed out before; both are tensors from outside, and what an operation writes into is no number any
// more.

/// Knows the numbers that the host turned into tensors while a step runs, and that no operation has written.
class HostNumbers {
 public:
  /// Where the allocations of the step's thread between its operations are noted; nullptr: nowhere, and there are no numbers.
  void listen_to(AllocationLog* allocations) noexcept { allocations_ = allocations; }

  /// Call at the begin of each operation.
  void note_writes(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs);
  [[nodiscard]] bool contains(const at::Tensor& tensor) const;
  /// Whether its memory is the CPU's and was handed out while the step ran, whatever its size.
  [[nodiscard]] bool is_fresh(const at::Tensor& tensor) const;

 private:
  [[nodiscard]] bool is_of_host(const at::Tensor& tensor) const;

  AllocationLog* allocations_ = nullptr;
  StorageSet written_;
};

}  // namespace pianola::trace
