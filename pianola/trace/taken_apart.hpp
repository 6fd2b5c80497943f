#pragma once
#include <pianola/core/export.hpp>

namespace pianola::trace {

/// Whether this thread runs, in a recording, the Python of a tensor's operators now. See Note [Tensors whose operators are Python].
[[nodiscard]] PIANOLA_API bool runs_python_of_a_tensor() noexcept;

}  // namespace pianola::trace
