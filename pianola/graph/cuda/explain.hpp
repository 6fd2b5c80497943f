#pragma once
#include <pianola/core/error.hpp>
#include <pianola/graph/cuda/capture_watch.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/util/Exception.h>
#include <cuda.h>

#include <optional>

namespace pianola::graph {

/// Why a capture is broken, from what was watched: names the operation and the cure.
[[nodiscard]] Diagnosis explain_broken(const CaptureWatch& watch, const OpTrace* trace);

/// Why ending a capture failed with this code.
[[nodiscard]] Diagnosis explain_end(CUresult code, const CaptureWatch& watch);

/// The device ran out of memory; also where torch broke the capture when it then gave cached memory back.
[[nodiscard]] std::optional<Diagnosis> explain_out_of_memory(const c10::Error& error, const CaptureWatch& watch,
                                                             const OpTrace* trace);

/// What torch's error means, where it is one that capturing caused; nothing if it is the step's own.
[[nodiscard]] std::optional<Diagnosis> explain_error(const c10::Error& error, const CaptureWatch& watch,
                                                     const OpTrace* trace);

/// As explain_error(), for the first use of a library; also where the capture broke by it.
[[nodiscard]] std::optional<Diagnosis> explain_cold_library(const c10::Error& error, const CaptureWatch& watch,
                                                            const OpTrace* trace);

/// As explain_error(), for work that went to the default stream; also where the capture broke by it.
[[nodiscard]] std::optional<Diagnosis> explain_default_stream(const c10::Error& error, const CaptureWatch& watch);

/// A recording without a node: says why, from the operations that were seen.
[[nodiscard]] Diagnosis explain_empty(const OpTrace* trace, const std::string& device);

}  // namespace pianola::graph
