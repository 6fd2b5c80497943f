#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/python_function.hpp>

#include <pianola/profile/profile.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace pianola::python {
namespace {

double us(Nanoseconds time) { return static_cast<double>(time) / 1000; }

Profile run_profiled(const py::function& step, int warmup, int iterations, bool modules, bool memory,
                     const std::string& trace) {
  const std::function<void()> action = make_action(step);
  const WithoutGil release;
  return profile(action,
                 {.warmup = warmup, .iterations = iterations, .modules = modules, .memory = memory, .trace = trace});
}

Profile profile_of_file(const std::string& path, const std::string& range, int process, int device) {
  const WithoutGil release;
  return load_profile(path, {.range = range, .process = process, .device = device});
}

std::optional<std::uint64_t> bytes_of(const Analysis& analysis, std::uint64_t MemoryUse::*figure) {
  return analysis.memory ? std::optional((*analysis.memory).*figure) : std::nullopt;
}

// 0 means that it is not.
std::optional<std::uint64_t> known(std::optional<std::uint64_t> bytes) { return bytes == 0 ? std::nullopt : bytes; }

void bind_scope(py::module_& module) {
  py::class_<ScopePrediction>(module, "ScopePrediction", "What an iteration would take with a graph of a scope.")
      .def_property_readonly("scope", [](const ScopePrediction& self) { return in_words(self.scope); })
      .def_readonly("obstacle", &ScopePrediction::obstacle)
      .def_property_readonly("low_us", [](const ScopePrediction& self) { return us(self.low); })
      .def_property_readonly("expected_us", [](const ScopePrediction& self) { return us(self.expected); })
      .def_property_readonly("high_us", [](const ScopePrediction& self) { return us(self.high); })
      .def_readonly("speedup", &ScopePrediction::speedup)
      .def_readonly("launches", &ScopePrediction::host_launches)
      .def_property_readonly("pool_bytes", [](const ScopePrediction& self) { return self.memory.pool; })
      .def_property_readonly("input_bytes", [](const ScopePrediction& self) { return self.memory.inputs; })
      .def_property_readonly("executable_bytes", [](const ScopePrediction& self) { return self.memory.executables; })
      .def_readonly("cpp", &ScopePrediction::cpp)
      .def_readonly("python", &ScopePrediction::python);
}

}  // namespace

void bind_profile(py::module_& module) {
  bind_scope(module);
  py::class_<Profile>(module, "Profile", "What a step does to the machine: recorded, analysed, judged.")
      .def_property_readonly("verdict", [](const Profile& self) { return in_words(self.decision.verdict); })
      .def_property_readonly("headline", [](const Profile& self) { return self.decision.headline; })
      .def_property_readonly("reasons", [](const Profile& self) { return self.decision.reasons; })
      .def_property_readonly("obstacles", [](const Profile& self) { return self.decision.obstacles; })
      .def_property_readonly("scopes", [](const Profile& self) { return self.decision.scopes; })
      .def_property_readonly("best",
                             [](const Profile& self) -> py::object {
                               const auto& scopes = self.decision.scopes;
                               return scopes.empty() ? py::none() : py::cast(scopes[self.decision.best]);
                             })
      .def_property_readonly("iterations", [](const Profile& self) { return self.analysis.iterations.size(); })
      .def_property_readonly("iteration_us", [](const Profile& self) { return us(self.analysis.duration); })
      .def_property_readonly("unrecorded_us", [](const Profile& self) { return us(self.analysis.unrecorded); })
      .def_property_readonly("busy_us", [](const Profile& self) { return us(self.analysis.busy); })
      .def_property_readonly("utilisation", [](const Profile& self) { return self.analysis.utilisation; })
      .def_property_readonly("jitter", [](const Profile& self) { return self.analysis.jitter; })
      .def_property_readonly("kernels", [](const Profile& self) { return self.analysis.kernels; })
      .def_property_readonly("launches", [](const Profile& self) { return self.analysis.launches; })
      .def_property_readonly("own_bytes", [](const Profile& self) { return bytes_of(self.analysis, &MemoryUse::own); })
      .def_property_readonly("allocated_bytes",
                             [](const Profile& self) { return known(bytes_of(self.analysis, &MemoryUse::allocated)); })
      .def_property_readonly("reserved_bytes",
                             [](const Profile& self) { return known(bytes_of(self.analysis, &MemoryUse::reserved)); })
      .def("to_text", &Profile::to_text, py::arg("width") = 100)
      .def("to_json", &Profile::to_json)
      .def("to_html", &Profile::to_html)
      .def("__str__", [](const Profile& self) { return self.to_text(); });
  module.def("profile", &run_profiled, py::arg("step"), py::kw_only(), py::arg("warmup"), py::arg("iterations"),
             py::arg("modules"), py::arg("memory"), py::arg("trace"));
  module.def("load_profile", &profile_of_file, py::arg("path"), py::kw_only(), py::arg("range"), py::arg("process"),
             py::arg("device"));
}

}  // namespace pianola::python
