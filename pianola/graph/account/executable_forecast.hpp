#pragma once
#include <pianola/trace/op_trace.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace pianola::graph {

/// Bytes that an executable graph of a step takes of the device, about: in units of 2 MiB, as the driver takes them. It tells no sizes, so
/// the number of nodes is guessed from the operations, and what a node takes is a fit.
///
/// Source:  training steps of ten models of torchvision, timm and transformers on an H200 (600 to 2,300 nodes; CUDA 13.0):
///          bench/python/main.py cuda/python_account.
[[nodiscard]] std::uint64_t forecast_executable(const OpTrace& trace);
/// The same of some operations. @param inside  Told their numbers in the trace.
[[nodiscard]] std::uint64_t forecast_executable(const OpTrace& trace,
                                                const std::function<bool(std::size_t operation)>& inside);

}  // namespace pianola::graph
