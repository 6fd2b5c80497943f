#include <bindings/bindings.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_module.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace pianola::python {
namespace {

// Tells whether a module that a function reads is as it was: a tight loop, where a look from Python would cost a
// microsecond per submodule.
class ModuleWatch {
 public:
  explicit ModuleWatch(const py::object& module) : module_(py::weakref(module)) { look(); }

  // The training flags, and a number that is another one when a parameter, buffer or submodule was replaced.
  py::tuple state() {
    if (!view_->has_its_parameters()) look();
    if (!view_->has_flags(flags_)) flags_ = view_->flags();
    return py::make_tuple(number_, py::cast(flags_));
  }

 private:
  void look() {
    view_ = std::make_unique<PythonModuleView>(module_.get()());
    flags_ = view_->flags();
    ++number_;
  }

  HeldObject module_;  // weak: whoever asks has the module
  std::unique_ptr<PythonModuleView> view_;
  std::vector<bool> flags_;
  std::int64_t number_ = 0;
};

}  // namespace

void bind_module_watch(py::module_& module) {
  py::class_<ModuleWatch>(module, "ModuleWatch", "Tells whether a module is as it was.")
      .def(py::init<const py::object&>(), py::arg("module"))
      .def("state", &ModuleWatch::state,
           "A number that changes when a parameter, buffer or submodule is replaced, and the training flags.");
}

}  // namespace pianola::python
