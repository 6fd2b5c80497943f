#include <bindings/adam_shortcut.hpp>
#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_function.hpp>

#include <pianola/callable/host_parts.hpp>
#include <pianola/graph/island.hpp>

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

namespace pianola::python {
namespace {

using callable::HostParts;

// A function of Python that returns one.
std::function<callable::HostPart::Run()> make_maker(const py::object& function) {
  if (function.is_none()) return {};
  return [held = HeldObject(function)] {
    const WithGil gil;
    return make_action(call_python(held.get()));
  };
}

callable::HostPartReads reads_of(const std::string& name) {
  using callable::HostPartReads;
  if (name == "overflow") return HostPartReads::overflow;
  return name == "values" ? HostPartReads::values : HostPartReads::nothing;
}

int begin(const py::object& run, const py::object& on_varying, const std::vector<at::Tensor>& parameters,
          c10::Device device, const std::string& reads, const py::object& save, bool runs_half, bool may_run_twice,
          const py::object& adam) {
  HostParts* const parts = HostParts::current();
  if (parts == nullptr) return 0;
  return parts->begin(device, {.runs_half = runs_half,
                               .run = make_action(run),
                               .on_varying = make_action(on_varying),
                               .parameters = parameters,
                               .reads = reads_of(reads),
                               .may_run_twice = may_run_twice,
                               .shortcut = adam.is_none() ? nullptr : make_adam_shortcut(adam),
                               .save = make_maker(save)});
}

bool end(int depth) {
  HostParts* const parts = HostParts::current();
  return parts != nullptr && parts->end(depth);
}

}  // namespace

void bind_host_parts(py::module_& module) {
  module.def(
      "host_parts_are_watched", [] { return HostParts::current() != nullptr && !graph::Islands::is_running(); },
      "Whether a step is observed or captured on this thread.");
  module.def(
      "begin_host_part", &begin, py::arg("run"), py::arg("on_varying"), py::arg("parameters"), py::arg("device"),
      py::arg("reads") = "", py::arg("save") = py::none(), py::arg("runs_half") = false,
      py::arg("may_run_twice") = false, py::arg("adam") = py::none(),
      "A part of the host begins, in a step that is observed or captured: replays call `run` in its place. "
      "Without one it is only looked at, and `on_varying` is called where that is not enough. A part that "
      "`reads` (\"values\", or \"overflow\", which is 0 where all is well) may ask for values that the graph computes; "
      "parts within it may not. What `save()` returns "
      "is called where a capture is taken back. One that `runs_half` while it is captured, without its hooks, "
      "runs again for the first launch. One that `may_run_twice` does nothing on the host but what `save()` puts "
      "back. `adam`: the torch.optim.Adam or AdamW whose step it is, without hooks; replays then need not run it.");
  module.def("end_host_part", &end, py::arg("depth"),
             "It ends. `depth` is what its begin gave: how many were open. Returns whether it made history for "
             "autograd, so that "
             "it cannot be run again.");
}

}  // namespace pianola::python
