#pragma once
#include <pianola/graph/pool_state.hpp>
#include <pianola/memory/step_run.hpp>

#include <cstddef>
#include <optional>

namespace pianola::graph {

/// Before a recording: that a pool keeps to the limit, whose blocks torch's allocator lays out or a plan does.
/// @param run     Before; nullopt: its memory could not be watched.
/// @param limit   0: none.
/// @param pool    That may share a region; nullptr: a new one.
/// @throws OutOfMemoryError  The pool would take more.
/// @throws UnsupportedError  The run is wanted, and nobody knows it.
void check_memory(const std::optional<memory::StepRun>& run, std::size_t limit, bool plan_memory,
                  const PoolState* pool);

}  // namespace pianola::graph
