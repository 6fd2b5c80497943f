#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/python_error.hpp>
#include <bindings/python_words.hpp>
#include <bindings/wrong_arguments.hpp>

#include <pianola/callable/backward_errors.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/training/finite_watch.hpp>

#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>

namespace pianola::python {
namespace {

// The Python class of each C++ one. They live as long as the process: exceptions outlive modules.
struct ErrorClass {
  const char* name;
  const char* doc;
  bool (*matches)(const Error& error);
  void (*raise)(Diagnosis diagnosis);  // never returns
  std::array<const char*, 2> bases;    // a class of ours before it, and one of torch's; nullptr: none but Error
  PyObject* python = nullptr;
};

template <typename E>
constexpr ErrorClass error_class(const char* name, const char* doc, std::array<const char*, 2> bases = {}) {
  return {.name = name,
          .doc = doc,
          .matches = [](const Error& error) { return dynamic_cast<const E*>(&error) != nullptr; },
          .raise = [](Diagnosis diagnosis) { throw E(std::move(diagnosis)); },
          .bases = bases};
}

// A class stands after those that it is a special case of.
std::array<ErrorClass, 11>& error_classes() {
  static std::array<ErrorClass, 11> classes = {
      error_class<UsageError>("UsageError", "The caller broke a documented rule."),
      error_class<CaptureError>("CaptureError", "A capture failed; nothing of it is kept."),
      error_class<ReplayError>("ReplayError", "A replay was refused, or could not be launched."),
      error_class<GuardError>("GuardError", "The inputs or modes of a call differ from those that were captured."),
      error_class<ScheduleError>("ScheduleError", "A pipeline schedule is malformed, or was not followed."),
      error_class<ConfigError>("ConfigError", "Options or a configuration contradict each other."),
      error_class<NonFiniteError>("NonFiniteError", "A checked tensor held NaN or infinity; training has to stop."),
      error_class<UnsupportedError>("UnsupportedError",
                                    "The request is sound, but this build or backend cannot serve it."),
      error_class<CommunicationError>(
          "CommunicationError",
          "A replay communicated with other ranks, and one of them did something else, or "
          "has ended. Unlike ReplayError: the replay has begun, and nothing is tried again."),
      error_class<DeviceError>("DeviceError", "No such device, no driver, or a CUDA call failed outside a capture."),
      error_class<OutOfMemoryError>("OutOfMemoryError", "The device ran out of memory while a capture recorded.",
                                    {"CaptureError", "OutOfMemoryError"}),
  };
  return classes;
}

PyObject* base_class = nullptr;

PyObject* class_of(const Error& error) {
  const auto& classes = error_classes();
  const auto found =
      std::find_if(classes.rbegin(), classes.rend(), [&](const ErrorClass& known) { return known.matches(error); });
  return found == classes.rend() ? base_class : found->python;
}

py::object bases_of(const ErrorClass& known, const py::module_& module) {
  if (known.bases[0] == nullptr) return py::reinterpret_borrow<py::object>(base_class);
  return py::make_tuple(module.attr(known.bases[0]), py::module_::import("torch").attr(known.bases[1]));
}

void set_python_error(const std::exception_ptr& error);

// The error that `error` was thrown in answer to, as a Python object; nothing where there is none.
py::object cause_of(const Error& error) {
  try {
    std::rethrow_if_nested(error);
  } catch (...) {
    set_python_error(std::current_exception());
    return py::error_already_set().value();
  }
  return {};
}

Diagnosis worded_for_python(const Diagnosis& diagnosis) {
  return {.what = in_python_words(diagnosis.what),
          .where = diagnosis.where,  // C++ functions keep their names
          .fix = in_python_words(diagnosis.fix),
          .rule = diagnosis.rule};
}

void set_python_error(const Error& error) {
  const py::object cause = cause_of(error);
  const py::object type = py::reinterpret_borrow<py::object>(class_of(error));
  const Error worded(worded_for_python(error.diagnosis()));
  const py::object raised = type(worded.what());
  raised.attr("what") = worded.diagnosis().what;
  raised.attr("where") = worded.diagnosis().where;
  raised.attr("fix") = worded.diagnosis().fix;
  raised.attr("rule") = worded.diagnosis().rule;
  if (cause) raised.attr("__cause__") = cause;
  PyErr_SetObject(type.ptr(), raised.ptr());
}

void set_python_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PythonError& from_python) {
    from_python.restore();
  } catch (py::error_already_set& from_python) {
    from_python.restore();
  } catch (const Error& ours) {
    set_python_error(ours);
  } catch (...) {
    torch::translate_exception_to_python(error);
  }
}

[[noreturn]] void raise_error(const std::string& name, std::string what, std::string where, std::string fix,
                              std::string rule) {
  for (const ErrorClass& known : error_classes()) {
    if (known.name != name) continue;
    known.raise({.what = std::move(what), .where = std::move(where), .fix = std::move(fix), .rule = std::move(rule)});
  }
  throw py::key_error(name);
}

// pybind11 knows what to do with its own exceptions (StopIteration, TypeError of a wrong argument, ...).
void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const py::builtin_exception&) {
    throw;
  } catch (...) {
    set_python_error(error);
  }
}

// As a Python error on its way through torch, which autograd hands on unchanged.
void rethrow_as_python_error(const std::exception_ptr& error) {
  const WithGil gil;
  set_python_error(error);
  python_error persistent;
  persistent.persist();
  throw persistent;
}

}  // namespace

void bind_errors(py::module_& module) {
  base_class = PyErr_NewExceptionWithDoc("pianola.Error",
                                         "Base of all errors of Pianola. `what`, `where` and `fix` are the parts of "
                                         "its text: what happened, the operation "
                                         "and line (may be empty), and what to do (may be empty). `rule` is the id of "
                                         "the hazard rule that it is a case of ('PG101'; may be empty).",
                                         PyExc_RuntimeError, nullptr);
  module.attr("Error") = py::handle(base_class);
  for (ErrorClass& known : error_classes()) {
    known.python = PyErr_NewExceptionWithDoc((std::string("pianola.") + known.name).c_str(), known.doc,
                                             bases_of(known, module).ptr(), nullptr);
    if (known.python == nullptr) throw py::error_already_set();
    module.attr(known.name) = py::handle(known.python);
  }
  py::register_local_exception_translator(&translate);
  callable::translate_backward_errors(&rethrow_as_python_error);
  module.def("raise_error", &raise_error, py::arg("name"), py::arg("what"), py::arg("where") = "", py::arg("fix") = "",
             py::arg("rule") = "", "Raises the error of that class name, in the form that all of them have.");
  bind_wrong_arguments(module);
}

}  // namespace pianola::python
