#pragma once
#include <pianola/graph/backend.hpp>
#include <pianola/graph/recording.hpp>

#include <exception>

namespace pianola::graph {

/// Throws what came out of a step while it was recorded, once the recording is undone: where the capture caused it, as a CaptureError
/// that names the operation, or an OutOfMemoryError, with the error nested in it; an error of the step's own unchanged.
/// @param seen  By the recording.
[[noreturn]] void throw_explained(const std::exception_ptr& error, const BrokenOff& seen, const Backend& backend);

}  // namespace pianola::graph
