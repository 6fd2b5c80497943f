#include <pianola/callable/leaf_hooks.hpp>

#include <pianola/callable/leaf_hook_checks.hpp>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>

namespace pianola::callable {
namespace {

std::atomic<PythonHooks (*)(const at::Tensor&)> python_hooks = nullptr;

}  // namespace

bool has_own_hooks(const at::Tensor& leaf) { return mark_of_hooks(leaf) != 0; }

// A hook of C++'s that was removed leaves its place in the list behind.
std::uint64_t mark_of_hooks(const at::Tensor& leaf) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (meta == nullptr || !may_have_hooks(*meta)) return 0;
  const auto ask = python_hooks.load();
  const PythonHooks pythons = ask == nullptr ? PythonHooks() : ask(leaf);
  std::uint64_t mark = pythons.mark;
  std::size_t known = pythons.dictionaries;
  if (const auto& list = meta->cpp_hooks_list_; list != nullptr) {
    ++known;
    for (std::size_t i = 0; i < list->size(); ++i) {
      if ((*list)[i]) mark = mark_with(mark, i);
    }
  }
  return meta->hooks_.size() > known ? mark_with(mark, meta->hooks_.size()) : mark;
}

void tell_python_hooks_by(PythonHooks (*hooks_of)(const at::Tensor& leaf)) { python_hooks = hooks_of; }

}  // namespace pianola::callable
