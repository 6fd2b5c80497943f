#pragma once
#include <pianola/memory/step_run.hpp>

#include <cstddef>
#include <optional>

namespace pianola::graph {

/// Before a recording: that a pool keeps to the limit, whose blocks torch's allocator lays out or a plan does.
/// @param run     Before; nullopt: its memory could not be watched.
/// @param limit   0: none.
/// @throws OutOfMemoryError  The pool would take more.
/// @throws UnsupportedError  The run is wanted, and nobody knows it.
void check_memory(const std::optional<memory::StepRun>& run, std::size_t limit, bool plan_memory);

}  // namespace pianola::graph
