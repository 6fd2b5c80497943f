#pragma once
#include <ATen/core/Tensor.h>

#include <span>

namespace pianola::graph {

/// Whether `to` gets the values of `from` by copying its bytes: same dtype and device, both laid out alike.
bool is_plain_copy(const at::Tensor& to, const at::Tensor& from);

/// Copies each of `sources` into the one of `targets` at its place, on the current stream; skips those that are the same
/// memory already. Shapes are equal, `targets` do not overlap. Sources that are undefined are taken for zeros.
void copy_into(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources);

}  // namespace pianola::graph
