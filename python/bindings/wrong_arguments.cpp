#include <bindings/wrong_arguments.hpp>

#include <string>
#include <string_view>

namespace pianola::python {
namespace {

// Where every call of a function of this module goes, and who words what went wrong. They live as long as the process.
PyCFunctionWithKeywords pybinds_call = nullptr;
PyObject* explain = nullptr;

bool is_about_arguments(std::string_view text) {
  return text.find("(): incompatible ") != std::string_view::npos &&
         text.find(" arguments. ") != std::string_view::npos;
}

void reword(PyObject* args, PyObject* kwargs) {
  const py::error_already_set raised;
  const auto text = py::str(raised.value()).cast<std::string>();
  if (!is_about_arguments(text)) {
    PyErr_SetObject(raised.type().ptr(), raised.value().ptr());
    return;
  }
  const py::object named = kwargs == nullptr ? py::object(py::dict()) : py::reinterpret_borrow<py::object>(kwargs);
  try {
    const py::object told = py::reinterpret_borrow<py::object>(explain)(text, py::handle(args), named);
    PyErr_SetObject(PyExc_TypeError, told.ptr());
  } catch (py::error_already_set&) {  // who cannot word it leaves it as it is
    PyErr_SetObject(raised.type().ptr(), raised.value().ptr());
  }
}

PyObject* call_checked(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* result = pybinds_call(self, args, kwargs);
  if (result == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) [[unlikely]]
    reword(args, kwargs);
  return result;
}

void route(py::handle function) {
  if (!function) return;
  PyObject* inner =
      PyInstanceMethod_Check(function.ptr()) != 0 ? PyInstanceMethod_GET_FUNCTION(function.ptr()) : function.ptr();
  if (PyCFunction_Check(inner) == 0) return;
  PyMethodDef* definition = reinterpret_cast<PyCFunctionObject*>(inner)->m_ml;
  if (definition->ml_flags != (METH_VARARGS | METH_KEYWORDS)) return;
  const auto target = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(definition->ml_meth));
  if (pybinds_call == nullptr) pybinds_call = target;
  if (target != pybinds_call) return;
  definition->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_checked));
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
