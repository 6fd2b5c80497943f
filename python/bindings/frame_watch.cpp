#include <bindings/bindings.hpp>

#include <frameobject.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

constexpr const char* kCapsule = "pianola.FrameWatch";

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

// Tells of each function of Python that begins on this thread: a profile function of the interpreter, in C, that looks at
// the code alone where nobody wants to know of it. Another profile function goes on hearing what it heard before, be it a
// profiler's, an audit's or an outer watch's.
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
    capsule_ = py::reinterpret_steal<py::object>(PyCapsule_New(this, kCapsule, nullptr));
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
  static int on_event(PyObject* capsule, PyFrameObject* frame, int what, PyObject* argument) {
    auto* const self = static_cast<FrameWatch*>(PyCapsule_GetPointer(capsule, kCapsule));
    if (self == nullptr || !self->capsule_) return 0;
    if (what == PyTrace_CALL) self->on_call(frame);
    return self->previous_ == nullptr ? 0 : self->previous_(self->previous_object_.ptr(), frame, what, argument);
  }

  // What goes wrong here must not go wrong in the function.
  void on_call(PyFrameObject* frame) {
    try {
      const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
      const auto known = wanted_.find(code.ptr());
      if (known != wanted_.end() && !known->second) return;
      const NotCompiled not_compiled(set_eval_frame_);
      if (known != wanted_.end() || ask(code)) {
        (void)on_frame_(py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(frame)));
      }
    } catch (const std::exception& error) {
      if (error_.empty()) error_ = error.what();
      PyErr_Clear();
    }
  }

  bool ask(const py::object& code) {
    const bool wanted = wants_(code).cast<bool>();
    held_.push_back(code);  // or another code could take its address
    wanted_.emplace(code.ptr(), wanted);
    return wanted;
  }

  py::function wants_;
  py::function on_frame_;
  py::object set_eval_frame_ = py::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame");
  std::unordered_map<PyObject*, bool> wanted_;
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
      .def("begin", &FrameWatch::begin)
      .def("end", &FrameWatch::end)
      .def_property_readonly("error", &FrameWatch::error);
}

}  // namespace pianola::python
