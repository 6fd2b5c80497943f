#pragma once
#include <pianola/core/export.hpp>
#include <pianola/verify/options.hpp>
#include <pianola/verify/report.hpp>

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace pianola {

/// A step as verify() calls it: its inputs (VerifyOptions::inputs, or none) to its results.
using VerifyStep = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Runs `eager` and `graphed` from the same state, with the same inputs and generators, and compares after every step
/// each result, the tensors of `state` with their gradients, and how far the generators are.
///
///     auto report = pianola::verify(eager, graphed, named_parameters, {.steps = 10});
///     if (!report.ok()) std::cout << report.to_text();
///
/// Eager runs all its steps and leaves copies; everything is put back; then the graphed side runs, until a step differs.
/// A gradient that eager leaves undefined equals zeros of the graph's: a graph writes where its capture left memory.
///
/// @param state  What the steps read and write from outside: parameters, buffers, optimizer state. What eager writes
///               and is not listed is found, put back as well, and reported; it is not compared.
/// Everything is put back at the end, also when a side throws; what a side throws is in the report. A gradient that a
/// graph of the graphed side writes stays in its place, as after Graph::capture.
/// @throws UsageError  An option is out of range, `state` cannot be put back, or a capture is open on this thread.
/// Stream:  Runs on the current stream, and waits for the device.
/// Memory:  Of each step of eager, what differs from the step before: on the device as long as half of what is free
///          there stays free, in host memory beyond. Narrowing a difference keeps what all operations of a step compute.
[[nodiscard]] PIANOLA_API VerifyReport verify(const VerifyStep& eager, const VerifyStep& graphed,
                                              const std::vector<NamedTensor>& state, const VerifyOptions& options = {});

/// For steps that read and write tensors of their own: what they return is listed in `state`.
[[nodiscard]] PIANOLA_API VerifyReport verify(const std::function<void()>& eager, const std::function<void()>& graphed,
                                              const std::vector<NamedTensor>& state, const VerifyOptions& options = {});

}  // namespace pianola
