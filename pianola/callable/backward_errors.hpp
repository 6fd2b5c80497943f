#pragma once
#include <pianola/core/export.hpp>

#include <exception>

namespace pianola::callable {

// Autograd hands what a backward pass throws to whoever called backward(), through code that knows torch's errors alone:
// for Python it makes a RuntimeError of ours. So a binding may say in which form it wants them.

/// Called, while it is set, with each pianola::Error that a graphed callable's backward throws; throws it in another form.
/// Once, at start-up.
PIANOLA_API void translate_backward_errors(void (*rethrow)(const std::exception_ptr& error));

/// Throws `error`, in the form that was asked for.
[[noreturn]] void throw_from_backward(const std::exception_ptr& error);

}  // namespace pianola::callable
