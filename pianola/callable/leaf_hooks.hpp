#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace pianola::callable {

/// Whether it has hooks of its own: of its gradient, or called when that was added to `.grad`.
bool has_own_hooks(const at::Tensor& leaf);
/// A number for which these are: another one where some were added or removed. 0: there are none.
std::uint64_t mark_of_hooks(const at::Tensor& leaf);
/// Goes on with a mark: another hook, by a number that it alone has.
inline std::uint64_t mark_with(std::uint64_t mark, std::uint64_t hook) noexcept { return mark * 1000003 + hook + 1; }

/// Python keeps the hooks of a tensor in dictionaries, each of which is one hook of C++'s, and stays when the last of its own
/// was removed.
struct PythonHooks {
  std::uint64_t mark = 0;        ///< Of those in the dictionaries.
  std::size_t dictionaries = 0;  ///< That are hooks of the gradient.
};
PIANOLA_API void tell_python_hooks_by(PythonHooks (*hooks_of)(const at::Tensor& leaf));

}  // namespace pianola::callable
