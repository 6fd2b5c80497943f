#include <bindings/python_look.hpp>

#include <bindings/gil.hpp>

#include <pianola/trace/made_of_tensors.hpp>
#include <pianola/trace/plain_check.hpp>

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pianola::python {
namespace {

PyObject* python_object_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
}

std::string class_name(PyObject* object) {
  const py::handle kind(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  return kind.attr("__qualname__").cast<std::string>();
}

// Of torch's own classes this is known without Python's lock, which a call does not hold.
bool overrides_functions(const at::Tensor& tensor) noexcept {
  PyObject* const object = python_object_of(tensor);
  if (object == nullptr || THPVariable_CheckExact(object)) return false;
  const WithGil gil;
  static PyObject* const disabled =
      py::object(py::module_::import("torch._C").attr("_disabled_torch_function_impl")).release().ptr();
  PyObject* const function = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__torch_function__");
  if (function == nullptr) PyErr_Clear();
  const bool overrides = function != nullptr && function != disabled;
  Py_XDECREF(function);
  return overrides;
}

std::string python_class_of(const at::Tensor& tensor) {
  const WithGil gil;
  PyObject* const object = python_object_of(tensor);
  return object == nullptr ? "" : class_name(object);
}

std::string class_of_mode(PyObject* mode) {
  const WithGil gil;
  return class_name(mode);
}

// What has no __tensor_flatten__, or one that throws, tells of no tensors.
std::vector<at::Tensor> tensors_inside_of(const at::Tensor& tensor) {
  const WithGil gil;
  std::vector<at::Tensor> found;
  PyObject* const object = python_object_of(tensor);
  if (object == nullptr) return found;
  try {
    const py::handle self(object);
    const py::tuple flat = self.attr("__tensor_flatten__")();
    for (const py::handle name : flat[0]) {
      const py::object part = self.attr(py::str(name));
      if (THPVariable_Check(part.ptr())) found.push_back(THPVariable_Unpack(part.ptr()));
    }
  } catch (const py::error_already_set&) {
    found.clear();
  }
  return found;
}

bool is_of_torch_distributed(const at::Tensor& tensor) noexcept {
  PyObject* const object = python_object_of(tensor);
  if (object == nullptr) return false;
  const WithGil gil;
  static auto& known = *new std::unordered_map<PyTypeObject*, bool>();  // torch's classes live as long as the process
  PyTypeObject* const kind = Py_TYPE(object);
  const auto found = known.find(kind);
  if (found != known.end()) return found->second;
  PyObject* const module = PyObject_GetAttrString(reinterpret_cast<PyObject*>(kind), "__module__");
  const char* const name = module != nullptr && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  const bool is_its = name != nullptr && std::string_view(name).starts_with("torch.distributed.");
  Py_XDECREF(module);
  PyErr_Clear();
  if (is_its) known.emplace(kind, true);
  return is_its;
}

std::size_t references_of(const at::Tensor& tensor) noexcept {
  PyObject* const object = python_object_of(tensor);
  return object == nullptr ? 0 : static_cast<std::size_t>(Py_REFCNT(object));
}

at::Tensor made_anew(const at::Tensor& tensor) {
  const WithGil gil;
  PyObject* const object = python_object_of(tensor);
  if (object == nullptr) return tensor;
  try {
    const py::handle self(object);
    const py::tuple flat = self.attr("__tensor_flatten__")();
    py::dict parts;
    for (const py::handle name : flat[0]) parts[name] = self.attr(py::str(name));
    const py::object other = py::type::handle_of(self).attr("__tensor_unflatten__")(parts, flat[1], self.attr("size")(),
                                                                                    self.attr("stride")());
    return THPVariable_Check(other.ptr()) ? THPVariable_Unpack(other.ptr()) : tensor;
  } catch (const py::error_already_set&) {
    return tensor;
  }
}

// torch keeps the class itself, for as long as the process lives.
PyTypeObject* default_device_class() {
  static PyObject* const found =
      py::object(py::module_::import("torch.utils._device").attr("DeviceContext")).release().ptr();
  return reinterpret_cast<PyTypeObject*>(found);
}

// The device that the innermost one says counts.
trace::FunctionModes function_modes() {
  using at::impl::PythonTorchFunctionTLS;
  const WithGil gil;
  trace::FunctionModes found;
  for (std::int64_t i = 0; i < PythonTorchFunctionTLS::stack_len(); ++i) {
    const auto& mode = PythonTorchFunctionTLS::get_stack_at(i);
    PyObject* const object = mode->ptr(&mode->pyinterpreter());
    if (Py_TYPE(object) != default_device_class()) {
      found.users = true;
      continue;
    }
    const py::object device = py::handle(object).attr("device");
    if (THPDevice_Check(device.ptr())) found.default_device = reinterpret_cast<THPDevice*>(device.ptr())->device;
  }
  return found;
}

// Asked anew each time: Python may run another thread while it imports, which must not wait for a static.
bool ask_about_compiled_code(const char* question) noexcept {
  try {
    const WithGil gil;
    return py::cast<bool>(py::module_::import("pianola._compiled_code").attr(question)());
  } catch (const std::exception&) {
    return false;
  }
}

bool see_compiled_code() noexcept { return ask_about_compiled_code("install"); }

// Of this thread. Where Python cannot say, nothing is compiled.
bool is_compiling() noexcept { return ask_about_compiled_code("is_compiling"); }

}  // namespace

void set_python_look() {
  trace::set_python_look({.overrides_functions = &overrides_functions,
                          .class_of = &python_class_of,
                          .class_of_mode = &class_of_mode,
                          .function_modes = &function_modes,
                          .see_compiled_code = &see_compiled_code,
                          .is_compiling = &is_compiling});
  trace::set_tensor_look({.is_of_torch_distributed = &is_of_torch_distributed,
                          .tensors_inside_of = &tensors_inside_of,
                          .made_anew = &made_anew,
                          .references_of = &references_of});
}

}  // namespace pianola::python
