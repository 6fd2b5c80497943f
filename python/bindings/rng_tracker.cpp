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
  py::class_<ForkContext>(module, "RngFork",
                          "While it is entered, the device's default generator draws from a named stream.")
      .def("__enter__", &ForkContext::enter)
      .def("__exit__", &ForkContext::exit);
  py::class_<RewindContext>(module, "RngRewind",
                            "While it is entered, streams and default generator draw on from a place.")
      .def("__enter__", &RewindContext::enter)
      .def("__exit__", &RewindContext::exit);
  py::class_<RngTracker::Place>(module, "RngPlace", "Where all streams and the default generator stood at one moment.");
  py::class_<RngTracker>(module, "RngTracker", "Streams of random numbers by name.")
      .def(py::init<c10::Device>(), py::arg("device"))
      .def("add", &RngTracker::add, py::arg("name"), py::arg("seed"), "A new stream.")
      .def("names", &RngTracker::names, "Of all streams, in the order in which they were added.")
      .def(
          "fork", [](RngTracker& self, std::string name) { return ForkContext(self, std::move(name)); },
          py::keep_alive<0, 1>(), py::arg("name"), "For `with`: what is drawn inside comes from that stream.")
      .def("place", &RngTracker::place,
           "Where streams and default generator stand now, to draw the same numbers once more.")
      .def(
          "rewind", [](RngTracker& self, RngTracker::Place place) { return RewindContext(self, std::move(place)); },
          py::keep_alive<0, 1>(), py::arg("place"),
          "For `with`: what is drawn inside is what was drawn from that place on.")
      .def("generators", &RngTracker::generators, "Of all streams, for captures.")
      .def("state_dict", &states_of_tracker, "Where each stream stands.")
      .def("load_state_dict", &load_tracker, py::arg("state_dict"),
           "Streams that are not there yet are made; graphs go on with the loaded state.");
}

}  // namespace pianola::python
