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

std::optional<std::uint64_t> left_of(const Analysis& analysis, std::uint64_t memory::FreeMemory::*figure) {
  if (!analysis.memory || !analysis.memory->left) return std::nullopt;
  return (*analysis.memory->left).*figure;
}

// 0 means that it is not.
std::optional<std::uint64_t> known(std::optional<std::uint64_t> bytes) { return bytes == 0 ? std::nullopt : bytes; }

void bind_scope(py::module_& module) {
  py::class_<ScopePrediction>(module, "ScopePrediction", "What an iteration would take with a graph of a scope.")
      .def_property_readonly(
          "scope", [](const ScopePrediction& self) { return in_words(self.scope); },
          "\"each layer\", \"forward and backward\", \"iteration without optimizer\" or \"whole iteration\".")
      .def_readonly("obstacle", &ScopePrediction::obstacle,
                    "Why it cannot be captured as the profile stands; empty: nothing seen.")
      .def_property_readonly(
          "low_us", [](const ScopePrediction& self) { return us(self.low); },
          "Duration of an iteration at best; 0: it cannot be told.")
      .def_property_readonly(
          "expected_us", [](const ScopePrediction& self) { return us(self.expected); },
          "0: it cannot be told, see `obstacle`.")
      .def_property_readonly(
          "high_us", [](const ScopePrediction& self) { return us(self.high); },
          "Duration of an iteration at worst; 0: it cannot be told.")
      .def_readonly("speedup", &ScopePrediction::speedup, "Of an iteration as it is now over `expected_us`.")
      .def_readonly("launches", &ScopePrediction::host_launches, "Calls that launch, per iteration.")
      .def_property_readonly(
          "pool_bytes", [](const ScopePrediction& self) { return self.memory.pool; },
          "Device memory of the graphs' pool; None: the profile does not say what the allocator did.")
      .def_property_readonly(
          "input_bytes", [](const ScopePrediction& self) { return self.memory.inputs; },
          "Of the static copies of inputs, as far as the profile shows them.")
      .def_property_readonly(
          "executable_bytes", [](const ScopePrediction& self) { return self.memory.executables; },
          "Of the executable graphs, outside of torch's allocator.")
      .def_property_readonly(
          "fits", [](const ScopePrediction& self) { return self.memory.fits; },
          "Whether captures find room in what the device has left; None: the profile does not tell.")
      .def_property_readonly(
          "planned_bytes", [](const ScopePrediction& self) { return self.memory.planned; },
          "Of the pool with plan_memory, where the graph would fit with that alone; else None.")
      .def_property_readonly(
          "memory_verdict", [](const ScopePrediction& self) { return self.memory.verdict; },
          "Whether it fits, in a sentence with the numbers; empty: the profile does not tell.")
      .def_readonly("cpp", &ScopePrediction::cpp, "The call to write in C++.")
      .def_readonly("python", &ScopePrediction::python, "The call to write.");
}

}  // namespace

void bind_profile(py::module_& module) {
  bind_scope(module);
  py::class_<Profile>(module, "Profile", "What a step does to the machine: recorded, analysed, judged.")
      .def_property_readonly(
          "verdict", [](const Profile& self) { return in_words(self.decision.verdict); },
          "\"graph\", \"small gain\", \"leave\", \"graphed already\" or \"unknown\".")
      .def_property_readonly(
          "headline", [](const Profile& self) { return self.decision.headline; },
          "\"Graph it: 2.4 times as fast, 5.1 instead of 12.3 ms per iteration.\"")
      .def_property_readonly(
          "reasons", [](const Profile& self) { return self.decision.reasons; }, "Sentences with the numbers behind it.")
      .def_property_readonly(
          "obstacles", [](const Profile& self) { return self.decision.obstacles; },
          "What stands in the way, each with what to do.")
      .def_property_readonly(
          "scopes", [](const Profile& self) { return self.decision.scopes; },
          "What each scope would bring, from the smallest to the whole iteration.")
      .def_property_readonly(
          "best",
          [](const Profile& self) -> py::object {
            const auto& scopes = self.decision.scopes;
            return scopes.empty() ? py::none() : py::cast(scopes[self.decision.best]);
          },
          "The one that the verdict is about.")
      .def_property_readonly(
          "iterations", [](const Profile& self) { return self.analysis.iterations.size(); }, "That were found.")
      .def_property_readonly(
          "iteration_us", [](const Profile& self) { return us(self.analysis.duration); },
          "As it was recorded, which slows the host.")
      .def_property_readonly(
          "unrecorded_us", [](const Profile& self) { return us(self.analysis.unrecorded); },
          "As pianola.profile() timed it before; of profiles that do not tell, `iteration_us`.")
      .def_property_readonly(
          "busy_us", [](const Profile& self) { return us(self.analysis.busy); },
          "Time in which the device works, per iteration.")
      .def_property_readonly(
          "utilisation", [](const Profile& self) { return self.analysis.utilisation; }, "0 to 1.")
      .def_property_readonly(
          "jitter", [](const Profile& self) { return self.analysis.jitter; },
          "Standard deviation of the iterations' durations over their mean.")
      .def_property_readonly(
          "kernels", [](const Profile& self) { return self.analysis.kernels; }, "Per iteration.")
      .def_property_readonly(
          "launches", [](const Profile& self) { return self.analysis.launches; },
          "Calls that launch a kernel, a graph, a copy or a memset, per iteration.")
      .def_property_readonly(
          "own_bytes", [](const Profile& self) { return bytes_of(self.analysis, &MemoryUse::own); },
          "The most at a time in blocks that an iteration asked for itself; None: the profile does not say.")
      .def_property_readonly(
          "allocated_bytes", [](const Profile& self) { return known(bytes_of(self.analysis, &MemoryUse::allocated)); },
          "The most at a time in all blocks of the device; None: the profile does not say, or it is of the CPU.")
      .def_property_readonly(
          "reserved_bytes", [](const Profile& self) { return known(bytes_of(self.analysis, &MemoryUse::reserved)); },
          "The most that the allocator held of the device; None: the profile does not say, or it is of the CPU.")
      .def_property_readonly(
          "free_bytes", [](const Profile& self) { return left_of(self.analysis, &memory::FreeMemory::of_driver); },
          "What the driver has left for pools and executables. Of a trace that pianola.profile() did not record, at "
          "most: what torch's "
          "allocator leaves of the device. None: the profile does not say.")
      .def_property_readonly(
          "cached_bytes", [](const Profile& self) { return left_of(self.analysis, &memory::FreeMemory::cached); },
          "What torch's allocator holds unused, for inputs alone; None: the profile does not say.")
      .def("to_text", &Profile::to_text, py::arg("width") = 100, "For people.")
      .def("to_json", &Profile::to_json, "One JSON object.")
      .def("to_html", &Profile::to_html, "A page with pictures that needs nothing else.")
      .def("__str__", [](const Profile& self) { return self.to_text(); });
  module.def("profile", &run_profiled, py::arg("step"), py::kw_only(), py::arg("warmup"), py::arg("iterations"),
             py::arg("modules"), py::arg("memory"), py::arg("trace"), "Runs a step a few times, and judges it.");
  module.def("load_profile", &profile_of_file, py::arg("path"), py::kw_only(), py::arg("range"), py::arg("process"),
             py::arg("device"), "Judges a profile that was recorded before.");
}

}  // namespace pianola::python
