#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/op_trace.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::graph {

// Note [Updates]
// An executable takes over the parameters of another graph, node by node, where both have the same nodes and edges: that spares making
// one. Which nodes an operation makes its library decides, by shapes for instance, so that on CUDA the driver has the last word. But a
// step of other operations is refused on every device, also where CUDA would take it: a program that is tried on the tape is
// refused there for the same reason, in the same words.
// The executable takes over a capture that is complete, while all that the earlier one has is still there: up to then the new one may
// fail, and what it took goes. If it fails later, the earlier capture lacks its executable alone, which its next replay makes anew.

/// The operations that a replay repeats, in order: none that only allocates or describes memory anew.
[[nodiscard]] std::vector<const OpRecord*> repeated_operations(const OpTrace& trace);

/// The first operation of a step that is not the one which was captured, in words; numbers, shapes and memory may be others.
[[nodiscard]] std::optional<Diagnosis> other_operations(const OpTrace& captured, const OpTrace& now);

/// "operation 3 of the step, train_step at loss.cpp:88". @param whose  "the step".
[[nodiscard]] std::string place_of(const OpTrace& trace, const OpRecord& op, std::string_view whose = "the step");

/// What a refused update advises.
inline constexpr const char* kCaptureAnew =
    "update() takes over the same operations with other tensors, shapes and numbers; for another step call reset() and "
    "capture()";

}  // namespace pianola::graph
