#pragma once
#include <ATen/core/Tensor.h>

#include <span>

namespace pianola::graph {

/// Whether `to` gets the values of `from` by copying its bytes: same dtype and device, both laid out alike.
bool is_plain_copy(const at::Tensor& to, const at::Tensor& from);
/// Whether both are the same bytes, read in the same way.
bool is_same_memory(const at::Tensor& to, const at::Tensor& from);
/// Whether a source looks at memory of another target than its own, so that the order of copies would matter.
bool are_entangled(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources);

/// Copies each of `sources` into the one of `targets` at its place, on the current stream; skips those that are the same
/// memory already. Shapes are equal. Sources that are undefined are taken for zeros; sources that look at other targets
/// are read before any target is written; targets may repeat elements (expand()).
void copy_into(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources);

/// A static input: a tensor of its own with the values of `sample`, and laid out as it, since strides decide which kernels
/// run; an expanded one repeats its elements as well.
at::Tensor static_copy_of(const at::Tensor& sample);

}  // namespace pianola::graph
