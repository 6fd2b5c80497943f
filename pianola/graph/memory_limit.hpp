#pragma once
#include <pianola/graph/pool_state.hpp>
#include <pianola/memory/step_run.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>

namespace pianola::graph {

/// Before a recording: that a pool keeps to the limit, whose blocks torch's allocator lays out or a plan does.
/// @param run     Before; nullopt: its memory could not be watched.
/// @param limit   0: none.
/// @param pool    That may share a region; nullptr: a new one.
/// @throws OutOfMemoryError  The pool would take more.
/// @throws UnsupportedError  The run is wanted, and nobody knows it.
void check_memory(const std::optional<memory::StepRun>& run, std::size_t limit, bool plan_memory,
                  const PoolState* pool);

/// Before anything runs: that the limit is not below what the inputs take by themselves, as no graph of theirs is.
/// @param limit  0: none. @throws OutOfMemoryError  They take more.
void check_static_inputs(std::span<const at::Tensor> inputs, std::size_t limit);

}  // namespace pianola::graph
