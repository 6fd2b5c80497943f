#include <bindings/bindings.hpp>
#include <bindings/python_watch.hpp>

#include <ATen/record_function.h>
#include <pybind11/functional.h>
#include <torch/csrc/autograd/python_variable.h>

#include <frameobject.h>

#include <algorithm>
#include <exception>

namespace pianola::python {
namespace {

constexpr const char* kWatchCapsule = "pianola.PythonWatch";

py::object code_of(PyFrameObject* frame) {
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
}

py::object attribute(PyObject* object, const char* name) {
  PyObject* const found = PyObject_GetAttrString(object, name);
  if (found == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(found);
}

PyObject* as_object(PyFrameObject* frame) { return reinterpret_cast<PyObject*>(frame); }

PyFrameObject* as_frame(const py::object& frame) { return reinterpret_cast<PyFrameObject*>(frame.ptr()); }

py::object caller_of(PyFrameObject* frame) {
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)));
}

// Null where there is nothing of that name.
py::object local_of(PyFrameObject* frame, const char* name) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* const value = PyFrame_GetVarString(frame, name);
  if (value == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(value);
#else
  const py::object locals = attribute(as_object(frame), "f_locals");
  if (!locals || PyDict_Check(locals.ptr()) == 0) return {};
  return py::reinterpret_borrow<py::object>(PyDict_GetItemString(locals.ptr(), name));
#endif
}

// Of a method.
py::object self_of(PyFrameObject* frame) { return local_of(frame, "self"); }

// Of torch.nn.Module's __call__(self, *args, **kwargs); null where they cannot be had.
py::object arguments_of(PyFrameObject* frame) {
  const py::object args = local_of(frame, "args"), kwargs = local_of(frame, "kwargs");
  return args && kwargs ? py::make_tuple(args, kwargs) : py::object();
}

int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  const py::object offset = attribute(as_object(frame), "f_lasti");
  return offset ? offset.cast<int>() : -1;
#endif
}

std::string text(const py::object& string) { return string ? string.cast<std::string>() : ""; }

// The function under decorators' wrappers is not looked for: whoever adds a callable means that one.
PyObject* code_of_function(const py::object& callable) {
  PyObject* function = callable.ptr();
  if (PyMethod_Check(function) != 0) function = PyMethod_GET_FUNCTION(function);
  return PyFunction_Check(function) != 0 ? PyFunction_GetCode(function) : nullptr;
}

const PyMethodDef* definition_of(const py::object& callable) {
  PyObject* const function = callable.ptr();
  if (PyCFunction_Check(function) != 0) return reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  const bool is_descriptor =
      Py_IS_TYPE(function, &PyMethodDescr_Type) || Py_IS_TYPE(function, &PyClassMethodDescr_Type);
  return is_descriptor ? reinterpret_cast<PyMethodDescrObject*>(function)->d_method : nullptr;
}

}  // namespace

PythonWatch::PythonWatch(Classify classify) : classify_(std::move(classify)) {
  held_.push_back(py::module_::import("torch.nn").attr("Module").attr("__call__"));
  module_call_ = code_of_function(held_.back());
}

bool PythonWatch::add(const py::object& callable, int key, std::uint32_t flags) {
  const Entry entry{.key = key, .flags = flags};
  if (PyObject* const code = code_of_function(callable); code != nullptr) {
    by_code_.insert_or_assign(code, entry);
  } else if (const PyMethodDef* const definition = definition_of(callable); definition != nullptr) {
    by_definition_.insert_or_assign(definition, entry);
  } else {
    return false;
  }
  held_.push_back(callable);
  codes_.clear();
  return true;
}

void PythonWatch::name_modules(const py::dict& paths) {
  module_paths_.clear();
  for (const auto& [module, path] : paths) module_paths_.emplace(module.ptr(), path.cast<std::string>());
  named_modules_ = paths.attr("copy")();
}

void PythonWatch::observe_modules(const py::list& modules, const py::object& observer) {
  observed_.clear();
  for (const py::handle module : modules) observed_.insert(module.ptr());
  observed_modules_ = py::list(py::tuple(modules));
  observer_ = observer;
}

void PythonWatch::begin(std::function<void(const std::string&)> on_enter, std::function<void()> on_leave) {
  if (capsule_) return;
  on_enter_ = std::move(on_enter);
  on_leave_ = std::move(on_leave);
  const PyThreadState* const thread = PyThreadState_Get();
  previous_ = thread->c_profilefunc;
  previous_object_ = py::reinterpret_borrow<py::object>(thread->c_profileobj);
  capsule_ = py::reinterpret_steal<py::object>(PyCapsule_New(this, kWatchCapsule, nullptr));
  PyEval_SetProfile(&PythonWatch::on_event, capsule_.ptr());
}

void PythonWatch::end() {
  if (!capsule_) return;
  const PyThreadState* const thread = PyThreadState_Get();
  if (thread->c_profileobj == capsule_.ptr()) PyEval_SetProfile(previous_, previous_object_.ptr());
  while (!running_.empty()) {  // a step that was left by an exception of C++
    leave(running_.back(), nullptr);
    running_.pop_back();
  }
  capsule_ = {};
  previous_object_ = {};
  on_enter_ = nullptr;
  on_leave_ = nullptr;
}

void PythonWatch::clear_hits() {
  hits_.clear();
  hit_at_.clear();
}

// What goes wrong here must not go wrong in the step.
int PythonWatch::on_event(PyObject* capsule, PyFrameObject* frame, int what, PyObject* argument) {
  auto* const self = static_cast<PythonWatch*>(PyCapsule_GetPointer(capsule, kWatchCapsule));
  if (self == nullptr || !self->capsule_) return 0;
  try {
    if (what == PyTrace_CALL) {
      self->on_call(frame);
    } else if (what == PyTrace_C_CALL) {
      self->on_c_call(frame, argument);
    } else if (what == PyTrace_RETURN && !self->running_.empty()) {
      self->on_return(frame, argument);
    }
  } catch (const py::error_already_set&) {
    PyErr_Clear();
  } catch (const std::exception&) {
    PyErr_Clear();
  }
  return 0;
}

void PythonWatch::on_call(PyFrameObject* frame) {
  const py::object code = code_of(frame);
  Code& called = look_up(code.ptr());
  if (!called.has_run && (called.file_kind & kHidden) == 0) {
    executed_.append(py::make_tuple(code, attribute(as_object(frame), "f_globals")));
  }
  called.has_run = true;
  if (called.calls_module) enter_module(frame);
  if (called.entry == nullptr || is_quiet()) return;
  const Entry& entry = *called.entry;
  const py::object subject = (entry.flags & kSelf) != 0 ? self_of(frame) : py::object();
  add_hit(entry, user_frame(caller_of(frame)), subject.ptr());
  if ((entry.flags & kQuiet) != 0) {
    running_.push_back({.frame = frame, .quiet = true, .was_recording = at::isRecordFunctionEnabled()});
    at::enableRecordFunction(false);
  }
}

void PythonWatch::on_return(const PyFrameObject* frame, PyObject* result) {
  if (running_.back().frame != frame) return;
  const Running ended = running_.back();
  running_.pop_back();
  leave(ended, result);
}

void PythonWatch::on_c_call(PyFrameObject* frame, PyObject* function) {
  if (PyCFunction_Check(function) == 0) return;
  const auto* const method = reinterpret_cast<PyCFunctionObject*>(function);
  const auto watched = by_definition_.find(method->m_ml);
  if (watched == by_definition_.end() || is_quiet()) return;
  add_hit(watched->second, user_frame(py::reinterpret_borrow<py::object>(as_object(frame))), method->m_self);
}

void PythonWatch::enter_module(PyFrameObject* frame) {
  const py::object module = self_of(frame);
  const auto path = module_paths_.find(module.ptr());
  const bool is_observed = observed_.count(module.ptr()) != 0;
  if (path == module_paths_.end() && !is_observed) return;
  Running running{.frame = frame};
  if (path != module_paths_.end()) running.path = &path->second;
  if (is_observed) running.observed = module.ptr();
  running_.push_back(running);
  if (running.path != nullptr && on_enter_) on_enter_(*running.path);
  if (is_observed) tell_observer(module.ptr(), "enter", arguments_of(frame).ptr(), frame);
}

void PythonWatch::leave(const Running& running, PyObject* result) {
  if (running.quiet) at::enableRecordFunction(running.was_recording);
  if (running.path != nullptr && on_leave_) on_leave_();
  if (running.observed != nullptr) tell_observer(running.observed, "leave", result, nullptr);
}

void PythonWatch::tell_observer(PyObject* module, const char* event, PyObject* told, PyFrameObject* frame) {
  const auto object = [](PyObject* borrowed) {
    return borrowed == nullptr ? py::object(py::none()) : py::reinterpret_borrow<py::object>(borrowed);
  };
  py::object place = py::none();
  if (frame != nullptr) {
    const UserFrame caller = user_frame(caller_of(frame));
    if (caller.code) place = py::make_tuple(caller.code.attr("co_name"), caller.code.attr("co_filename"), caller.line);
  }
  try {
    observer_(object(module), event, object(told), place);
  } catch (const py::error_already_set&) {  // what it raises is lost
    PyErr_Clear();
  }
}

PythonWatch::UserFrame PythonWatch::user_frame(py::object frame) {
  UserFrame found;
  for (bool is_first = true; frame; frame = caller_of(as_frame(frame)), is_first = false) {
    py::object code = code_of(as_frame(frame));
    const std::uint32_t kind = look_up(code.ptr()).file_kind;
    if ((kind & kBoundary) != 0) return found;
    if ((kind & kHidden) == 0) {
      found.line = PyFrame_GetLineNumber(as_frame(frame));
      if (is_first) found.instruction = instruction_of(as_frame(frame));
      found.code = std::move(code);
      return found;
    }
    found.through |= kind;
  }
  return found;
}

// What a quiet call does is part of it.
bool PythonWatch::is_quiet() const {
  return std::any_of(running_.begin(), running_.end(), [](const Running& one) { return one.quiet; });
}

void PythonWatch::add_hit(const Entry& entry, const UserFrame& caller, PyObject* subject) {
  const std::uintptr_t id = (entry.flags & kSelf) != 0 ? reinterpret_cast<std::uintptr_t>(subject) : 0;
  const Place place(entry.key, caller.code.ptr(), caller.line, caller.instruction, caller.through, id);
  const auto [known, is_new] = hit_at_.try_emplace(place, hits_.size());
  if (!is_new) {
    ++hits_[known->second].times;
    return;
  }
  PythonHit hit{.key = entry.key,
                .line = caller.line,
                .code = caller.code,
                .instruction = caller.instruction,
                .through = caller.through,
                .subject = id};
  if (caller.code) {
    hit.function = text(caller.code.attr("co_name"));
    hit.file = text(caller.code.attr("co_filename"));
  }
  if (subject != nullptr && THPVariable_Check(subject)) hit.device = THPVariable_Unpack(subject).device().str();
  const auto module =
      std::find_if(running_.rbegin(), running_.rend(), [](const Running& one) { return one.path != nullptr; });
  if (module != running_.rend()) hit.module = *module->path;
  hits_.push_back(std::move(hit));
}

PythonWatch::Code& PythonWatch::look_up(PyObject* code) {
  const auto known = codes_.find(code);
  if (known != codes_.end()) return known->second;
  const auto held = py::reinterpret_borrow<py::object>(code);
  held_.push_back(held);  // or another code could take its address
  return codes_.emplace(code, describe(held)).first->second;
}

PythonWatch::Code PythonWatch::describe(const py::object& code) {
  Code described;
  const std::string file = text(code.attr("co_filename"));
  const auto known = file_kinds_.find(file);
  described.file_kind = known != file_kinds_.end() ? known->second : classify_(file);
  if (known == file_kinds_.end()) file_kinds_.emplace(file, described.file_kind);
  const auto watched = by_code_.find(code.ptr());
  if (watched != by_code_.end()) described.entry = &watched->second;
  described.calls_module = code.ptr() == module_call_;
  return described;
}

namespace {

void bind_hit(py::module_& module) {
  py::class_<PythonHit>(module, "PythonHit", "A watched call at one place.")
      .def_readonly("key", &PythonHit::key, "Of what was called.")
      .def_readonly("function", &PythonHit::function,
                    "The user's function that calls; empty where no user's frame does.")
      .def_readonly("file", &PythonHit::file, "Where that is.")
      .def_readonly("line", &PythonHit::line, "In that file.")
      .def_property_readonly(
          "code", [](const PythonHit& self) { return self.code ? self.code : py::none(); },
          "Of that function; None where there is none.")
      .def_readonly("instruction", &PythonHit::instruction,
                    "Offset of the call in its bytecode; -1 where it goes through other code.")
      .def_readonly("through", &PythonHit::through, "Kinds of all files between the call and the user's frame.")
      .def_readonly("subject", &PythonHit::subject, "id() of the object that the method belongs to, with WATCH_SELF.")
      .def_readonly("device", &PythonHit::device, "Of that object where it is a tensor.")
      .def_readonly("module", &PythonHit::module, "Path of the module whose forward runs.")
      .def_readonly("times", &PythonHit::times, "How often.");
}

}  // namespace

void bind_python_watch(py::module_& module) {
  bind_hit(module);
  py::class_<PythonWatch>(module, "PythonWatch", "Sees what a step calls that no operation shows.")
      .def(py::init<PythonWatch::Classify>(), py::arg("classify"))
      .def("add", &PythonWatch::add, py::arg("callable"), py::arg("key"), py::arg("flags") = 0,
           "Watches for calls from now on; False where a profile function does not see calls of it.")
      .def("name_modules", &PythonWatch::name_modules, py::arg("paths"),
           "The paths of modules, instead of the earlier ones.")
      .def("observe_modules", &PythonWatch::observe_modules, py::arg("modules"), py::arg("observer"),
           "Calls of these modules are told: observer(module, \"enter\", (args, kwargs), (function, file, line)), "
           "and\nobserver(module, \"leave\", result, None).")
      .def(
          "begin", [](PythonWatch& self) { self.begin({}, {}); }, "Starts; what is seen is added to the hits.")
      .def("end", &PythonWatch::end, "Stops, and puts the thread's other profile function back.")
      .def("hits", &PythonWatch::hits, "What was seen.")
      .def("clear_hits", &PythonWatch::clear_hits, "Forgets it.")
      .def("executed", &PythonWatch::executed,
           "The user's functions that ran: (code, globals), in the order of their first calls.");
  module.attr("WATCH_QUIET") = static_cast<int>(PythonWatch::kQuiet);
  module.attr("WATCH_SELF") = static_cast<int>(PythonWatch::kSelf);
  module.attr("FILE_HIDDEN") = static_cast<int>(PythonWatch::kHidden);
  module.attr("FILE_BOUNDARY") = static_cast<int>(PythonWatch::kBoundary);
}

}  // namespace pianola::python
