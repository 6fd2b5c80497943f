#pragma once
#include <bindings/held_object.hpp>

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace pianola::python {

/// A watched call at one place.
struct PythonHit {
  int key = 0;                ///< Of what was called; as given to PythonWatch::add().
  std::string function = {};  ///< The user's function that calls; empty where no user's frame does.
  std::string file = {};
  int line = 0;
  py::object code = {};        ///< Of that function; null where there is none.
  int instruction = -1;        ///< Offset of the call in its bytecode; -1 where it goes through other code.
  std::uint32_t through = 0;   ///< Kinds of all files between the call and the user's frame.
  std::uintptr_t subject = 0;  ///< id() of the object that the method belongs to, where it is asked for.
  std::string device = {};     ///< Of that object where it is a tensor: "cpu", "cuda:0".
  std::string module = {};     ///< Path of the module whose forward runs.
  std::size_t times = 1;
};

/// Sees what a step calls that no operation of ATen shows: a profile function of the interpreter, in C, on one thread.
/// It compares code objects and method definitions with a table, and looks at frames only on a hit. It also knows which
/// module's forward runs. Another profile function of the thread sleeps meanwhile.
///
/// Threads:  All of it on the thread of the step, with the GIL.
class PythonWatch {
 public:
  /// What is special about a watched callable.
  enum Flags : std::uint32_t {
    kTracked = 1,  ///< A hit only where the method belongs to one of track().
    kQuiet = 2,  ///< ATen's operations inside are shown to nobody: they are part of the call. Functions of Python only.
    kSelf = 4,   ///< Calls on different objects are different hits.
  };
  /// Bits of a file's kind that mean something here; the others are the caller's.
  enum FileKind : std::uint32_t {
    kHidden = 1,    ///< Its frames are not the user's.
    kBoundary = 2,  ///< Beyond its frames there is nothing of the step.
  };
  using Classify = std::function<std::uint32_t(const std::string& file)>;

  explicit PythonWatch(Classify classify);
  PythonWatch(const PythonWatch&) = delete;
  PythonWatch& operator=(const PythonWatch&) = delete;
  ~PythonWatch() { end(); }

  /// Watches for calls from now on. @return  false: a profile function does not see calls of it.
  bool add(const py::object& callable, int key, std::uint32_t flags);
  /// The paths of modules, by module, instead of the earlier ones.
  void name_modules(const py::dict& paths);
  /// Calls of these modules are told as they begin and end: observer(module, "enter", (args, kwargs),
  /// (function, file, line)) and observer(module, "leave", result, None). What it raises is lost. Replaces the earlier
  /// ones.
  void observe_modules(const py::list& modules, const py::object& observer);

  /// Starts; what is seen is added to the hits. `on_enter` hears the paths of modules whose forward begins.
  void begin(std::function<void(const std::string&)> on_enter, std::function<void()> on_leave);
  void end();

  [[nodiscard]] const std::vector<PythonHit>& hits() const noexcept { return hits_; }
  void clear_hits();
  /// The user's functions that ran while the watch was on: (code, globals), in the order of their first calls.
  [[nodiscard]] const py::list& executed() const noexcept { return executed_; }

 private:
  struct Entry {
    int key;
    std::uint32_t flags;
  };
  struct Code {
    std::uint32_t file_kind = 0;
    const Entry* entry = nullptr;  // nullptr: it is not watched for
    bool calls_module = false;
    bool has_run = false;
  };
  struct Running {  // a call whose end matters
    PyFrameObject* frame;
    bool quiet = false;
    bool was_recording = false;
    const std::string* path = nullptr;  // of the module that was entered
    PyObject* observed = nullptr;
  };
  struct UserFrame {
    py::object code;  // null: there is none
    int line = 0;
    int instruction = -1;
    std::uint32_t through = 0;
  };
  using Place = std::tuple<int, PyObject*, int, int, std::uint32_t, std::uintptr_t>;

  static int on_event(PyObject* capsule, PyFrameObject* frame, int what, PyObject* argument);
  void on_call(PyFrameObject* frame);
  void on_return(const PyFrameObject* frame, PyObject* result);
  void on_c_call(PyFrameObject* frame, PyObject* function);
  void enter_module(PyFrameObject* frame);
  void leave(const Running& running, PyObject* result);
  void tell_observer(PyObject* module, const char* event, PyObject* told, PyFrameObject* frame);
  [[nodiscard]] bool is_quiet() const;
  void add_hit(const Entry& entry, const UserFrame& caller, PyObject* subject);
  [[nodiscard]] UserFrame user_frame(py::object frame);
  Code& look_up(PyObject* code);
  Code describe(const py::object& code);

  Classify classify_;
  std::unordered_map<std::string, std::uint32_t> file_kinds_;
  std::unordered_map<PyObject*, Code> codes_;
  PyObject* module_call_ = nullptr;  // code of torch.nn.Module's __call__
  std::unordered_map<PyObject*, Entry> by_code_;
  std::unordered_map<const PyMethodDef*, Entry> by_definition_;
  std::unordered_map<PyObject*, std::string> module_paths_;
  std::unordered_set<PyObject*> observed_;
  std::vector<py::object> held_;  // what the tables point at
  py::object named_modules_, observed_modules_, observer_;
  py::list executed_;
  std::vector<PythonHit> hits_;
  std::map<Place, std::size_t> hit_at_;
  std::vector<Running> running_;  // outermost first
  std::function<void(const std::string&)> on_enter_;
  std::function<void()> on_leave_;
  py::object capsule_;  // what the interpreter knows of us; null while the watch is off
  py::object previous_object_;
  Py_tracefunc previous_ = nullptr;
};

}  // namespace pianola::python
