#include <bindings/tensor_hooks.hpp>

#include <bindings/gil.hpp>

#include <pianola/callable/leaf_hooks.hpp>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>

namespace pianola::python {
namespace {

constexpr const char* kOfGradient = "_backward_hooks";
constexpr const char* kAfterAccumulation = "_post_accumulate_grad_hooks";

bool is_empty(const py::object& hooks) { return py::isinstance<py::dict>(hooks) && py::len(hooks) == 0; }

// Python's hooks of a gradient are one of C++'s, whatever their number.
bool are_empty(const at::Tensor& leaf) {
  const WithGil gil;
  const py::object tensor = py::cast(leaf);
  const auto& of_gradient = torch::autograd::impl::hooks(leaf);
  if (!of_gradient.empty() && (of_gradient.size() > 1 || !is_empty(tensor.attr(kOfGradient)))) return false;
  return torch::autograd::impl::post_acc_grad_hooks(leaf) == nullptr || is_empty(tensor.attr(kAfterAccumulation));
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
  callable::tell_empty_hooks_by(&are_empty);
  module.def("drop_empty_hooks", &drop_empty_hooks, py::arg("tensor"));
}

}  // namespace pianola::python
