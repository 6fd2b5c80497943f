#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/plain_value.hpp>

#include <pianola/core/error.hpp>
#include <pianola/training/checkpoint.hpp>

#include <pybind11/stl/filesystem.h>
#include <torch/csrc/Exceptions.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

std::function<c10::IValue()> saves_by(const py::function& save, const std::string& name) {
  return [held = HeldObject(save), name] {
    const WithGil gil;
    const py::object state = held.get()();
    try {
      return as_plain_value(state);
    } catch (const py::builtin_exception& error) {
      throw UsageError({.what = "part '" + name + "' cannot be saved: " + error.what(),
                        .fix = "keep in its state_dict() only what torch.load(weights_only=True) reads"});
    }
  };
}

// Python words every refusal as an error of ours; what else comes (an interrupt) goes its way.
std::function<void(const c10::IValue&)> loads_by(const py::function& load) {
  return [held = HeldObject(load)](const c10::IValue& state) {
    const WithGil gil;
    try {
      (void)held.get()(as_python(state));
    } catch (const py::error_already_set& raised) {
      if (raised.matches(PyExc_UnicodeDecodeError)) {
        throw UsageError({.what = std::string("its text is no text: ") + raised.what(),
                          .fix = "the file is damaged: load an earlier checkpoint"});
      }
      const py::object error = raised.value();
      if (!py::hasattr(error, "what") || !py::hasattr(error, "fix")) throw;
      throw UsageError({.what = error.attr("what").cast<std::string>(), .fix = error.attr("fix").cast<std::string>()});
    }
  };
}

// Returns the object of Python's class, to go on with.
py::object add_generator(const py::object& self, std::string name, at::Generator generator) {
  self.cast<Checkpoint&>().add_generator(std::move(name), std::move(generator));
  return self;
}

void add_part(Checkpoint& self, const std::string& name, const py::function& save, const py::function& load) {
  self.add(name, saves_by(save, name), loads_by(load));
}

void add_tensors(Checkpoint& self, std::string name, std::vector<std::pair<std::string, at::Tensor>> tensors) {
  std::vector<NamedTensor> named;
  for (auto& [of, tensor] : tensors) named.push_back({.name = std::move(of), .tensor = std::move(tensor)});
  self.add(std::move(name), std::move(named));
}

// What C++ warns of becomes warnings of Python's.
void load_checkpoint(Checkpoint& self, const std::filesystem::path& file) {
  try {
    torch::PyWarningHandler warnings;
    try {
      const WithoutGil release;
      self.load(file);
    } catch (...) {
      warnings.set_in_exception();
      throw;
    }
  } catch (python_error& raised) {  // where a filter of Python's makes errors of warnings
    raised.restore();
    throw py::error_already_set();
  }
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  py::class_<Checkpoint>(module, "Checkpoint", "The parts of a training run in one file.")
      .def(py::init<>())
      .def("add_part", &add_part, py::arg("name"), py::arg("save"), py::arg("load"),
           "A part that keeps its state itself. `load` refuses with an Error, and has changed nothing then.")
      .def("add_tensors", &add_tensors, py::arg("name"), py::arg("tensors"),
           "Tensors by name, which are loaded in place.")
      .def("add_generator", &add_generator, py::arg("name"), py::arg("generator"),
           "A generator's place in its numbers: torch.default_generator, torch.cuda.default_generators[0].")
      .def("save", &Checkpoint::save, py::arg("file"), NoGil(), "Writes the file, or replaces it in one move.")
      .def("load", &load_checkpoint, py::arg("file"), "Loads all parts, or none.");
}

}  // namespace pianola::python
