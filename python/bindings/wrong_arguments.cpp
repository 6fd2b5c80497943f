#include <bindings/wrong_arguments.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace pianola::python {
namespace {

// Where every call of a function of this module goes, and who words what went wrong. They live as long as the process. The
// pybind11 of torch 2.15 takes arguments as an array.
// Python names it otherwise before 3.13.
using FastCall = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
PyCFunctionWithKeywords pybinds_call = nullptr;
FastCall pybinds_fast_call = nullptr;
PyObject* explain = nullptr;

bool is_about_arguments(std::string_view text) {
  return text.find("(): incompatible ") != std::string_view::npos &&
         text.find(" arguments. ") != std::string_view::npos;
}

// arguments()  The tuple and the dict of the call that has failed.
template <typename Arguments>
void reword(const Arguments& arguments) {
  const py::error_already_set raised;
  const auto text = py::str(raised.value()).template cast<std::string>();
  if (!is_about_arguments(text)) {
    PyErr_SetObject(raised.type().ptr(), raised.value().ptr());
    return;
  }
  try {
    const auto [plain, named] = arguments();
    const py::object told = py::reinterpret_borrow<py::object>(explain)(text, plain, named);
    PyErr_SetObject(PyExc_TypeError, told.ptr());
  } catch (py::error_already_set&) {  // who cannot word it leaves it as it is
    PyErr_SetObject(raised.type().ptr(), raised.value().ptr());
  }
}

PyObject* call_checked(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* result = pybinds_call(self, args, kwargs);
  if (result == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) [[unlikely]] {
    reword([&] {
      return std::pair(py::reinterpret_borrow<py::object>(args),
                       kwargs == nullptr ? py::object(py::dict()) : py::reinterpret_borrow<py::object>(kwargs));
    });
  }
  return result;
}

PyObject* fast_call_checked(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  PyObject* result = pybinds_fast_call(self, args, count, names);
  if (result == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) [[unlikely]] {
    reword([&] {
      py::tuple plain(count);
      for (Py_ssize_t i = 0; i < count; ++i) plain[i] = py::handle(args[i]);
      py::dict named;
      const Py_ssize_t named_count = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
      for (Py_ssize_t i = 0; i < named_count; ++i)
        named[py::handle(PyTuple_GET_ITEM(names, i))] = py::handle(args[count + i]);
      return std::pair(py::object(plain), py::object(named));
    });
  }
  return result;
}

// Puts `checked` in the place of pybind11's own function, where that is what a method calls.
template <typename Function>
void put(Function checked, Function& pybinds, PyMethodDef& definition) {
  const auto target = reinterpret_cast<Function>(reinterpret_cast<void (*)()>(definition.ml_meth));
  if (pybinds == nullptr) pybinds = target;
  if (target == pybinds) definition.ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(checked));
}

void route(py::handle function) {
  if (!function) return;
  PyObject* inner =
      PyInstanceMethod_Check(function.ptr()) != 0 ? PyInstanceMethod_GET_FUNCTION(function.ptr()) : function.ptr();
  if (PyCFunction_Check(inner) == 0) return;
  PyMethodDef* definition = reinterpret_cast<PyCFunctionObject*>(inner)->m_ml;
  if (definition->ml_flags == (METH_VARARGS | METH_KEYWORDS)) put(&call_checked, pybinds_call, *definition);
  if (definition->ml_flags == (METH_FASTCALL | METH_KEYWORDS)) put(&fast_call_checked, pybinds_fast_call, *definition);
}

void route_member(py::handle member) {
  if (PyObject_TypeCheck(member.ptr(), &PyProperty_Type) != 0) {
    for (const char* part : {"fget", "fset"}) {
      if (const py::object function = member.attr(part); !function.is_none()) route(function);
    }
  } else if (PyObject_TypeCheck(member.ptr(), &PyStaticMethod_Type) != 0) {
    route(member.attr("__func__"));
  } else {
    route(member);
  }
}

void explain_by(const py::module_& module, const py::function& words) {
  const bool first = explain == nullptr;
  explain = py::object(words).release().ptr();
  if (!first) return;
  const auto name = module.attr("__name__").cast<std::string>();
  for (const auto& [key, member] : module.attr("__dict__").cast<py::dict>()) {
    route(member);
    if (!py::isinstance<py::type>(member) || !py::hasattr(member, "__module__")) continue;
    if (member.attr("__module__").cast<std::string>() != name) continue;
    for (const py::handle one : py::list(member.attr("__dict__").attr("values")())) route_member(one);
  }
}

}  // namespace

void bind_wrong_arguments(py::module_& module) {
  module.def(
      "explain_wrong_arguments",
      [](const py::function& words) { explain_by(py::module_::import("pianola._C"), words); }, py::arg("explain"),
      "From now on, TypeErrors about arguments of this module's functions have the text that `explain` returns.");
}

}  // namespace pianola::python
