#pragma once
#include <ATen/record_function.h>

namespace pianola::trace {

/// From now on, operations that this thread runs, and that autograd's threads run for it, go to the OpStreamState that sees the thread
/// at the time: which spans of torch begin and end one, and which are hidden, odd, or the host's own, is decided here.
/// @param needs_outputs  OpSpan::outputs are wanted.
/// @return  For at::removeCallback(), on the same thread.
[[nodiscard]] at::CallbackHandle add_op_callbacks(bool needs_outputs);

}  // namespace pianola::trace
