#include <bindings/tensor_hooks.hpp>

#include <bindings/gil.hpp>

#include <pianola/callable/leaf_hooks.hpp>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>

namespace pianola::python {
namespace {

constexpr const char* kOfGradient = "_backward_hooks";
constexpr const char* kAfterAccumulation = "_post_accumulate_grad_hooks";

bool is_empty(const py::object& hooks) { return py::isinstance<py::dict>(hooks) && py::len(hooks) == 0; }

// By the numbers of their handles, each of which is given once.
callable::PythonHooks hooks_of(const at::Tensor& leaf) {
  const WithGil gil;
  const py::object tensor = py::cast(leaf);
  callable::PythonHooks hooks;
  for (const char* name : {kOfGradient, kAfterAccumulation}) {
    const py::object kept = tensor.attr(name);
    if (kept.is_none()) continue;
    if (name == kOfGradient) ++hooks.dictionaries;
    for (const py::handle key : kept) hooks.mark = callable::mark_with(hooks.mark, key.cast<std::uint64_t>());
  }
  return hooks;
}

// What a handle's remove() leaves behind.
void drop_empty_hooks(const py::object& object) {
  const auto leaf = object.cast<at::Tensor>();
  if (is_empty(object.attr(kOfGradient)) && torch::autograd::impl::hooks(leaf).size() == 1) {
    object.attr(kOfGradient) = py::none();
  }
  if (is_empty(object.attr(kAfterAccumulation))) {
    object.attr(kAfterAccumulation) = py::none();
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
  }
}

}  // namespace

void bind_tensor_hooks(py::module_& module) {
  callable::tell_python_hooks_by(&hooks_of);
  module.def("drop_empty_hooks", &drop_empty_hooks, py::arg("tensor"),
             "Takes away the empty dictionaries that removed hooks leave on a tensor.");
}

}  // namespace pianola::python
