#include <bindings/python_function.hpp>

#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_error.hpp>
#include <bindings/python_module.hpp>

#include <torch/csrc/jit/api/module.h>

#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

Callable::Run make_run(const py::function& function) {
  return [held = HeldObject(function)](const std::vector<c10::IValue>& arguments) -> c10::IValue {
    const WithGil gil;
    py::tuple tensors(arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) tensors[i] = arguments[i].toTensor();
    return call_python(held.get(), tensors).cast<std::vector<at::Tensor>>();
  };
}

Callable::View make_view(const py::object& module) {
  if (py::hasattr(module, "_c") && py::isinstance<torch::jit::Module>(module.attr("_c"))) {
    const Callable script(module.attr("_c").cast<torch::jit::Module>());
    return [script] { return script.view(); };
  }
  return [weak = HeldObject(py::weakref(module))]() -> std::unique_ptr<ModuleView> {
    const WithGil gil;
    return std::make_unique<PythonModuleView>(weak.get()());
  };
}

}  // namespace

py::object call_python(const py::object& function, const py::tuple& arguments) {
  try {
    return or_park([&] { return py::object(function(*arguments)); });
  } catch (const py::error_already_set& raised) {
    std::rethrow_exception(as_cpp_error(raised));
  }
}

Callable make_callable(const py::function& function, const py::object& module) {
  if (module.is_none()) return Callable(make_run(function));
  return Callable::of_module(make_run(function), make_view(module));
}

std::function<void()> make_action(const py::object& function) {
  if (function.is_none()) return {};
  return [held = HeldObject(function)] {
    const WithGil gil;
    (void)call_python(held.get());
  };
}

}  // namespace pianola::python
