#pragma once
#include <ATen/core/Tensor.h>

#include <span>

namespace pianola::callable {

/// Whether a call of a graphed function made now, with these inputs, is part of a capture (Pianola's on this thread, or
/// torch's on the current stream) or of a run that is observed: it has to run eagerly then, and becomes part of that.
[[nodiscard]] bool runs_inside_another(std::span<const at::Tensor> inputs);

}  // namespace pianola::callable
