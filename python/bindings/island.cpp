#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_function.hpp>

#include <pianola/callable/checked_reads.hpp>
#include <pianola/callable/seen_operations.hpp>
#include <pianola/graph/island.hpp>
#include <pianola/graph/read_check.hpp>

#include <pybind11/complex.h>
#include <torch/csrc/autograd/python_variable.h>

#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

using Tensors = std::vector<at::Tensor>;

// Nobody follows what runs while it lives: profile functions of the interpreter sleep.
class Unprofiled {
 public:
  Unprofiled()
      : function_(PyThreadState_Get()->c_profilefunc),
        object_(py::reinterpret_borrow<py::object>(PyThreadState_Get()->c_profileobj)) {
    if (function_ != nullptr) PyEval_SetProfile(nullptr, nullptr);
  }
  Unprofiled(const Unprofiled&) = delete;
  Unprofiled& operator=(const Unprofiled&) = delete;
  ~Unprofiled() {
    if (function_ != nullptr) PyEval_SetProfile(function_, object_.ptr());
  }

 private:
  Py_tracefunc function_;
  py::object object_;
};

// `function` returns tensors, and anything that tells what the caller makes of them; in a replay, where that is as in the capture, nothing
// or one tensor as they are.
graph::IslandFunction::Run with_gil(const py::function& function) {
  return [held = HeldObject(function)](const Tensors& inputs, const graph::IslandNumbers& numbers) {
    const WithGil gil;
    const Unprofiled unprofiled;
    py::list given;
    for (const c10::IValue& number : numbers) {
      given.append(number.isDouble() ? py::object(py::float_(number.toDouble())) : py::int_(number.toInt()));
    }
    const py::object result = call_python(held.get(), py::make_tuple(inputs, given));
    if (result.is_none()) return graph::IslandResult();
    if (THPVariable_Check(result.ptr())) return graph::IslandResult{.tensors = {THPVariable_Unpack(result.ptr())}};
    auto [tensors, structure] = result.cast<std::pair<Tensors, py::object>>();
    return graph::IslandResult{.tensors = std::move(tensors), .structure = std::make_shared<HeldObject>(structure)};
  };
}

// Of a step whose replays can check. @return  Whether it is one. A run before its recording is not to be checked.
//
// `tensors` have their values long before `copies`, which were made where the step asked, unless something was written there since.
bool check_in_replays(const py::function& check, Tensors tensors, const Tensors& copies, std::string what) {
  callable::CheckedReads* const reads = callable::CheckedReads::current();
  if (reads == nullptr) return false;
  if (!graph::Islands::step_is_recorded()) return true;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (reads->is_written_behind(tensors[i], copies.at(i))) tensors[i] = copies[i];
  }
  const std::size_t place = reads->note_check(tensors);
  graph::ReadCheck made = [held = HeldObject(check)](const Tensors& now) {
    const WithGil gil;
    const Unprofiled unprofiled;
    return call_python(held.get(), py::make_tuple(now)).cast<bool>();
  };
  const py::gil_scoped_release released;
  graph::check_in_replays(std::move(tensors), std::move(made), std::move(what), place);
  return true;
}

// While it is entered, tells a function of Python's of the operations of this thread, and of autograd's for it.
class OperationsSeen {
 public:
  explicit OperationsSeen(const py::function& note)
      : note_([held = HeldObject(note)](const callable::SeenOperations::Operation& one) {
          const WithGil gil;
          const Unprofiled unprofiled;
          const py::error_scope of_the_operation;  // which may have thrown
          call_python(held.get(), py::make_tuple(one.name, one.inputs, one.written, one.outputs, number_of(one.number),
                                                 one.reads, one.is_copy_to_host, one.draws, one.is_backward));
        }) {}
  void enter() { operations_.emplace(note_); }
  void exit() { operations_.reset(); }

 private:
  static py::object number_of(const c10::IValue& value) {
    if (value.isDouble()) return py::float_(value.toDouble());
    if (value.isInt()) return py::int_(value.toInt());
    if (value.isBool()) return py::bool_(value.toBool());
    if (value.isComplexDouble()) return py::cast(std::complex<double>(value.toComplexDouble()));
    return py::none();
  }
  callable::SeenOperations::OnEnd note_;
  std::optional<callable::SeenOperations> operations_;
};

}  // namespace

void bind_island(py::module_& module) {
  module.def("next_island_number", &graph::next_island_number, "For call_island().");
  module.def(
      "islands_are_open", [] { return graph::Islands::current() != nullptr; },
      "Whether a step runs on this thread that is observed or recorded.");
  module.def("is_in_island", &graph::Islands::is_running, "Whether a part that stays eager runs in such a step.");
  module.def(
      "call_island",
      [](const py::function& function, std::string name, std::int64_t number, Tensors inputs,
         const std::vector<py::object>& numbers, bool is_found) -> std::optional<std::pair<Tensors, py::object>> {
        graph::IslandFunction island{
            .run = with_gil(function), .name = std::move(name), .number = number, .is_found = is_found};
        graph::IslandNumbers given;
        for (const py::object& one : numbers) {
          given.push_back(PyFloat_Check(one.ptr()) ? c10::IValue(one.cast<double>())
                                                   : c10::IValue(one.cast<std::int64_t>()));
        }
        graph::IslandResult result;
        {
          const py::gil_scoped_release released;
          result = graph::call_island(std::move(island), std::move(inputs), std::move(given));
        }
        if (result.is_unfit) return std::nullopt;
        return std::make_pair(std::move(result.tensors), static_cast<HeldObject*>(result.structure.get())->get());
      },
      py::arg("function"), py::arg("name"), py::arg("number"), py::arg("inputs"), py::arg("numbers"),
      py::arg("is_found") = false,
      "Calls function(inputs, numbers), which returns (tensors, structure), as an island of the step that runs. None, "
      "of one that was "
      "found: it is to be called as it is.");
  py::class_<OperationsSeen>(
      module, "OperationsSeen",
      "Context manager: calls note(name, inputs, written, outputs, number, reads, is_copy_to_host, "
      "draws, is_backward) at the end of each operation.")
      .def(py::init<const py::function&>(), py::arg("note"))
      .def("__enter__", &OperationsSeen::enter, py::call_guard<py::gil_scoped_release>())
      .def("__exit__", [](OperationsSeen& seen, const py::args& /*exception*/) {
        const py::gil_scoped_release released;
        seen.exit();
      });
  module.def(
      "check_in_replays", &check_in_replays, py::arg("check"), py::arg("tensors"), py::arg("copies"), py::arg("what"),
      "Replays of the step that is captured call check(tensors), and end where it says no. False: it is no such step.");
}

}  // namespace pianola::python
