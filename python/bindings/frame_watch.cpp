#include <bindings/bindings.hpp>

#include <frameobject.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

constexpr const char* kFrameCapsule = "pianola.FrameWatch";

// What runs inside is the watch's own: where torch.compile's code runs, its compiler takes every function that begins, and
// would spend minutes on those of the watch.
class NotCompiled {
 public:
  explicit NotCompiled(const py::object& set_eval_frame) : set_(set_eval_frame), before_(set_(py::none())) {}
  NotCompiled(const NotCompiled&) = delete;
  NotCompiled& operator=(const NotCompiled&) = delete;
  ~NotCompiled() {
    const py::error_scope kept;
    try {
      set_(before_);
    } catch (const py::error_already_set&) {
      PyErr_Clear();  // it was set before, so that it can be set
    }
  }

 private:
  const py::object& set_;
  py::object before_;
};

// The interpreter's own function that finds, makes and runs a module that nobody has imported before.
bool is_import(PyObject* code) {
  const auto* const one = reinterpret_cast<PyCodeObject*>(code);
  const auto is = [](PyObject* text, std::string_view wanted) {
    return PyUnicode_CompareWithASCIIString(text, wanted.data()) == 0;
  };
  return is(one->co_name, "_find_and_load") && is(one->co_filename, "<frozen importlib._bootstrap>");
}

// Tells of each function of Python that begins on this thread: a profile function of the interpreter, in C, that looks at
// the code alone where nobody wants to know of it. Another profile function goes on hearing what it heard before, be it a
// profiler's, an audit's or an outer watch's.
//
// Of what an import runs it tells nothing: that happens once in a process, and is no part of what a call does.
//
// Threads:  All of it on one thread, with the GIL.
class FrameWatch {
 public:
  // `wants(code)` is asked once for each code; `on_frame(frame)` hears of those that are wanted.
  FrameWatch(py::function wants, py::function on_frame) : wants_(std::move(wants)), on_frame_(std::move(on_frame)) {}
  FrameWatch(const FrameWatch&) = delete;
  FrameWatch& operator=(const FrameWatch&) = delete;
  ~FrameWatch() { end(); }

  void begin() {
    if (capsule_) return;
    const PyThreadState* const thread = PyThreadState_Get();
    previous_ = thread->c_profilefunc;
    previous_object_ = py::reinterpret_borrow<py::object>(thread->c_profileobj);
    import_ = nullptr;
    capsule_ = py::reinterpret_steal<py::object>(PyCapsule_New(this, kFrameCapsule, nullptr));
    PyEval_SetProfile(&FrameWatch::on_event, capsule_.ptr());
  }

  void end() {
    if (!capsule_) return;
    const PyThreadState* const thread = PyThreadState_Get();
    if (thread->c_profileobj == capsule_.ptr()) PyEval_SetProfile(previous_, previous_object_.ptr());
    capsule_ = {};
    previous_object_ = {};
    previous_ = nullptr;
  }

  // What went wrong while it watched: then it has not seen all. Empty where nothing did.
  [[nodiscard]] const std::string& error() const noexcept { return error_; }

 private:
  enum class Interest : std::uint8_t { none, wanted, import };

  static int on_event(PyObject* capsule, PyFrameObject* frame, int what, PyObject* argument) {
    auto* const self = static_cast<FrameWatch*>(PyCapsule_GetPointer(capsule, kFrameCapsule));
    if (self == nullptr || !self->capsule_) return 0;
    if (self->import_ == nullptr) {
      if (what == PyTrace_CALL && !self->on_call(frame)) return -1;
    } else if (what == PyTrace_RETURN && frame == self->import_) {
      self->import_ = nullptr;
    }
    return self->previous_ == nullptr ? 0 : self->previous_(self->previous_object_.ptr(), frame, what, argument);
  }

  // What goes wrong here must not go wrong in the function. False: the user has interrupted the program meanwhile, which the function
  // raises in our place.
  [[nodiscard]] bool on_call(PyFrameObject* frame) {
    try {
      const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
      const auto known = known_.find(code.ptr());
      if (known != known_.end() && known->second == Interest::none) return true;
      const NotCompiled not_compiled(set_eval_frame_);
      const Interest interest = known != known_.end() ? known->second : ask(code);
      if (interest == Interest::import) import_ = frame;
      if (interest == Interest::wanted) {
        (void)on_frame_(py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(frame)));
      }
    } catch (py::error_already_set& raised) {
      if (!raised.matches(PyExc_Exception)) {
        raised.restore();
        return false;
      }
      note(raised);
    } catch (const std::exception& error) {
      note(error);
    }
    return true;
  }

  void note(const std::exception& error) {
    if (error_.empty()) error_ = error.what();
    PyErr_Clear();
  }

  Interest ask(const py::object& code) {
    const Interest interest = is_import(code.ptr())       ? Interest::import
                              : wants_(code).cast<bool>() ? Interest::wanted
                                                          : Interest::none;
    held_.push_back(code);  // or another code could take its address
    known_.emplace(code.ptr(), interest);
    return interest;
  }

  py::function wants_;
  py::function on_frame_;
  py::object set_eval_frame_ = py::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame");
  std::unordered_map<PyObject*, Interest> known_;  // by code
  PyFrameObject* import_ = nullptr;                // the outermost that runs; compared, never looked into
  std::vector<py::object> held_;
  std::string error_;
  py::object capsule_;  // what the interpreter knows of us; null while the watch is off
  py::object previous_object_;
  Py_tracefunc previous_ = nullptr;
};

}  // namespace

void bind_frame_watch(py::module_& module) {
  py::class_<FrameWatch>(module, "FrameWatch", "Tells of each function of Python that begins on this thread.")
      .def(py::init<py::function, py::function>(), py::arg("wants"), py::arg("on_frame"))
      .def("begin", &FrameWatch::begin, "Starts; another profile function of the thread goes on hearing what it heard.")
      .def("end", &FrameWatch::end, "Stops, and leaves the other profile function alone.")
      .def_property_readonly("error", &FrameWatch::error, "What went wrong while it watched; empty where nothing did.");
}

}  // namespace pianola::python
