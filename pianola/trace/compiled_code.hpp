#pragma once
#include <pianola/core/export.hpp>

#include <string>

// For the Python package, which makes operations of what torch.compile's code calls. See Note [Compiled code] in plain_check.hpp.

namespace pianola::trace {

/// Whether a stream sees the operations of this thread.
[[nodiscard]] PIANOLA_API bool operations_are_watched() noexcept;

/// The step runs such code on this thread, and no graph can hold it: why. Nothing where no stream sees it.
/// @param is_new  It was made in this call, and a later one that finds it can be held.
PIANOLA_API void note_compiled_code(std::string what, bool is_new = false);

}  // namespace pianola::trace
