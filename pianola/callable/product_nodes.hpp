#pragma once
#include <torch/csrc/autograd/function.h>

namespace pianola::callable {

/// Whether this is torch's own backward of a product of matrices or a convolution, that may run in two parts: what it has saved is
/// there at once, and no hook makes it anew each time (a recomputed block's would compute twice).
[[nodiscard]] bool is_divisible_product(const torch::autograd::Node& node);

/// Whether this is torch's own backward of a change of layout or dtype: one tensor in, the same numbers out.
[[nodiscard]] bool is_layout_change(const torch::autograd::Node& node);

}  // namespace pianola::callable
