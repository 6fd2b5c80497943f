#pragma once
#include <pianola/trace/op_trace.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>

namespace pianola::verification {

/// Index of the first operation that writes into the tensor's elements, which are alive and as the traced run left them;
/// for memory that the run made itself, from its making on. Nothing where no operation does.
std::optional<std::size_t> first_writer(const OpTrace& trace, const at::Tensor& tensor);

/// Whether what operation `from` computes reaches the tensor, by way of the operations after it. May say yes where bytes
/// that it reached are overwritten on the way.
bool reaches(const OpTrace& trace, std::size_t from, const at::Tensor& tensor);

/// Index of the first operation that may draw random numbers.
std::optional<std::size_t> first_draw(const OpTrace& trace);

}  // namespace pianola::verification
