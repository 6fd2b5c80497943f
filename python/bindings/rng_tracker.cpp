#include <bindings/bindings.hpp>

#include <pianola/training/rng_tracker.hpp>

#include <map>
#include <optional>
#include <string>

namespace pianola::python {
namespace {

// `with tracker.fork(name):`
class ForkContext {
 public:
  ForkContext(RngTracker& tracker, std::string name) : tracker_(tracker), name_(std::move(name)) {}
  void enter() { fork_.emplace(tracker_.fork(name_)); }
  void exit(const py::args& /*error*/) { fork_.reset(); }

 private:
  RngTracker& tracker_;
  std::string name_;
  std::optional<RngTracker::Fork> fork_;
};

// `with tracker.rewind(place):`
class RewindContext {
 public:
  RewindContext(RngTracker& tracker, RngTracker::Place place) : tracker_(tracker), place_(std::move(place)) {}
  void enter() { rewind_.emplace(tracker_.rewind(place_)); }
  void exit(const py::args& /*error*/) { rewind_.reset(); }

 private:
  RngTracker& tracker_;
  RngTracker::Place place_;
  std::optional<RngTracker::Rewind> rewind_;
};

std::map<std::string, at::Tensor> states_of_tracker(const RngTracker& tracker) {
  std::map<std::string, at::Tensor> states;
  for (const NamedTensor& state : tracker.state()) states.emplace(state.name, state.tensor);
  return states;
}

void load_tracker(RngTracker& tracker, const std::map<std::string, at::Tensor>& states) {
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [name, state] : states) dict.insert(name, state);
  tracker.load_state_dict(dict);
}

}  // namespace

void bind_rng_tracker(py::module_& module) {
  py::class_<ForkContext>(module, "RngFork").def("__enter__", &ForkContext::enter).def("__exit__", &ForkContext::exit);
  py::class_<RewindContext>(module, "RngRewind")
      .def("__enter__", &RewindContext::enter)
      .def("__exit__", &RewindContext::exit);
  py::class_<RngTracker::Place>(module, "RngPlace", "Where all streams and the default generator stood at one moment.");
  py::class_<RngTracker>(module, "RngTracker")
      .def(py::init<c10::Device>(), py::arg("device"))
      .def("add", &RngTracker::add, py::arg("name"), py::arg("seed"))
      .def("names", &RngTracker::names)
      .def(
          "fork", [](RngTracker& self, std::string name) { return ForkContext(self, std::move(name)); },
          py::keep_alive<0, 1>(), py::arg("name"))
      .def("place", &RngTracker::place)
      .def(
          "rewind", [](RngTracker& self, RngTracker::Place place) { return RewindContext(self, std::move(place)); },
          py::keep_alive<0, 1>(), py::arg("place"))
      .def("generators", &RngTracker::generators)
      .def("state_dict", &states_of_tracker)
      .def("load_state_dict", &load_tracker, py::arg("state_dict"));
}

}  // namespace pianola::python
