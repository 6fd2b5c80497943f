#pragma once
#include <pianola/trace/op_info.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace pianola::trace {

// Note [Copies from the host]
// `mask.to(device)` of a mask that the step made on the CPU copies the same bytes in each call, as long as the step makes it of
// the same numbers. A capture cannot hold a copy from pageable memory. So it is given a copy of that memory in pinned memory,
// which the graph keeps; of indices (`x[:, rows]`) it is given a copy on the GPU. What was copied in two calls is compared like
// numbers that operations are given, and tensors of the CPU from outside of the step like all that it computes with.

/// The tensor of the CPU that the call copies to a GPU from pageable memory; nullptr: it does nothing of that kind.
[[nodiscard]] const at::Tensor* copied_from_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs);

/// Whether torch copies this index, of a tensor of a GPU, there itself: one of the CPU, in pageable memory. Not a mask, whose true
/// values it counts first.
[[nodiscard]] bool is_index_of_host(const c10::IValue& index);
/// All of those by which the call indexes a tensor of a GPU.
[[nodiscard]] std::vector<at::Tensor> indices_of_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs);
/// Whether the call copies this tensor of the CPU to a GPU, of its own accord or as an index.
[[nodiscard]] bool takes_from_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs, const at::Tensor& tensor);

/// Another call with the same result.
struct CallInstead {
  const OpInfo* op;
  torch::jit::Stack inputs;
};
/// Where copied_from_host() is one number, what gives that number to the GPU without a copy: aten::full in place of
/// aten::_to_copy, aten::fill_ in place of aten::copy_; without a history. Nothing: the copy rounds, or what it writes requires grad.
[[nodiscard]] std::optional<CallInstead> number_given(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs);

/// A hash of the tensor's values. Of the CPU, dense.
[[nodiscard]] std::int64_t hash_of_values(const at::Tensor& tensor);

}  // namespace pianola::trace
