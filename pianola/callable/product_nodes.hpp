#pragma once
#include <torch/csrc/autograd/function.h>

namespace pianola::callable {

/// Whether this is the backward of a product of matrices or a convolution, torch's own or one that is known, that may run in two parts:
/// what it has saved is there at once, and no hook makes it anew each time (a recomputed block's would compute twice).
[[nodiscard]] bool is_divisible_product(const torch::autograd::Node& node);

/// Makes other backwards known. `is_one` is true for those of one kind that may run in two parts: first with the edges to weights taken
/// out, later with those alone. Whatever it does besides gradients, such as noting a value, it has to do in the first part, and what it
/// makes there for the second it has to keep. To be called when the library is loaded.
/// @return  true, for a static variable.
bool know_divisible_product(bool (*is_one)(const torch::autograd::Node& node));

/// Whether this is torch's own backward of a change of layout or dtype: one tensor in, the same numbers out.
[[nodiscard]] bool is_layout_change(const torch::autograd::Node& node);

}  // namespace pianola::callable
