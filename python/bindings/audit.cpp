#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_error.hpp>
#include <bindings/python_function.hpp>
#include <bindings/python_watch.hpp>
#include <bindings/python_words.hpp>

#include <pianola/audit/session.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/hazard_rule.hpp>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

using auditing::RunBoundary;
using auditing::Session;

SourcePlace as_place(const py::tuple& place) {
  return {.function = place[0].cast<std::string>(), .file = place[1].cast<std::string>(), .line = place[2].cast<int>()};
}

std::optional<Severity> severity_of(const std::string& words) {
  constexpr std::array kAll = {Severity::breaks_capture, Severity::wrong_numbers, Severity::memory,
                               Severity::performance, Severity::style};
  const auto* const found =
      std::find_if(kAll.begin(), kAll.end(), [&](Severity severity) { return in_words(severity) == words; });
  return found == kAll.end() ? std::nullopt : std::optional(*found);
}

Finding make_finding(const std::string& rule, const std::string& severity, const std::string& op,
                     const std::string& module, const py::tuple& place, const std::string& what,
                     const std::string& evidence, const std::string& fix, int iteration, std::size_t times) {
  Finding finding = Finding::of(rule);
  finding.severity = severity_of(severity).value_or(finding.severity);
  finding.op = op;
  finding.module = module;
  finding.place = as_place(place);
  finding.what = what.empty() ? std::string(finding.rule->title) : what;
  finding.evidence = evidence;
  if (!fix.empty()) finding.fix = fix;
  finding.iteration = iteration;
  finding.times = times;
  return finding;
}

std::vector<NamedTensor> as_named(const py::list& pairs) {
  std::vector<NamedTensor> named;
  named.reserve(pairs.size());
  for (const py::handle pair : pairs) {
    const auto tuple = py::reinterpret_borrow<py::tuple>(pair);
    named.push_back({.name = tuple[0].cast<std::string>(), .tensor = tuple[1].cast<at::Tensor>()});
  }
  return named;
}

AuditOptions make_audit_options(int iterations, int warmup, bool sources, bool trial, bool restore,
                                std::vector<at::Generator> generators, int capture_warmup,
                                std::optional<c10::Device> device, std::optional<std::size_t> free_memory,
                                std::string subject) {
  return {.iterations = iterations,
          .warmup = warmup,
          .sources = sources,
          .trial = trial,
          .restore = restore,
          .generators = std::move(generators),
          .capture_warmup = capture_warmup,
          .device = device,
          .free_memory = free_memory,
          .subject = std::move(subject)};
}

void begin(Session& session, std::vector<at::Tensor> inputs, const py::list& names) {
  RunBoundary boundary{.inputs = std::move(inputs), .names = as_named(names)};
  const WithoutGil release;
  session.begin(std::move(boundary));
}

std::exception_ptr as_error(const py::object& exception, const std::string& message) {
  if (py::isinstance(exception, py::module_::import("torch").attr("OutOfMemoryError"))) {
    return std::make_exception_ptr(c10::OutOfMemoryError(message, nullptr));
  }
  return std::make_exception_ptr(PythonError(exception));
}

void end_by(Session& session, const py::object& exception, const std::string& message, const py::tuple& place) {
  const std::exception_ptr error = as_error(exception, message);
  const SourcePlace source = as_place(place);
  const WithoutGil release;
  session.end_by(error, message, source);
}

void watch(Session& session, PythonWatch& python) {
  python.begin([&session](const std::string& path) { session.enter_module(path); },
               [&session] { session.leave_module(); });
}

std::string member(const py::object& object, const char* name) { return object.attr(name).cast<std::string>(); }

// As C++ knows them: refusals that come from the package's Python are the library's too.
std::function<void()> make_step(const py::function& step, const py::object& refusal) {
  return [held = HeldObject(step), kind = HeldObject(refusal)] {
    const WithGil gil;
    try {
      or_park([&] { (void)held.get()(); });
    } catch (const py::error_already_set& raised) {
      if (!raised.matches(kind.get())) std::rethrow_exception(as_cpp_error(raised));
      const py::object error = raised.value();
      throw CaptureError({.what = member(error, "what"),
                          .where = member(error, "where"),
                          .fix = member(error, "fix"),
                          .rule = member(error, "rule")});
    }
  };
}

void try_capture(Session& session, const py::function& step, const py::object& between) {
  const std::function<void()> run = make_step(step, py::module_::import("pianola._C").attr("CaptureError"));
  const std::function<void()> play = make_action(between);
  const WithoutGil release;
  session.try_capture(run, play);
}

// Of the findings those for which `keep` is true.
AuditReport kept(const AuditReport& report, const py::function& keep) {
  AuditReport result;
  result.subject = report.subject;
  result.device = report.device;
  result.iterations = report.iterations;
  result.operations = report.operations;
  result.cuts = report.cuts;
  for (const Finding& finding : report.findings()) {
    if (keep(finding).cast<bool>()) result.add(finding);
  }
  for (const std::string& note : report.notes()) result.add_note(note);
  return result;
}

// The stream on which the gradient of a leaf is accumulated, where its node exists: 0 is the default stream.
std::optional<c10::StreamId> gradient_stream(const at::Tensor& leaf) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
  if (node == nullptr) return std::nullopt;
  const std::optional<c10::Stream> stream = node->stream();
  return stream ? std::optional(stream->id()) : std::nullopt;
}

void bind_rules(py::module_& module) {
  const auto words = [](std::string_view text) { return in_python_words(std::string(text)); };
  py::class_<HazardRule>(module, "HazardRule", "One kind of thing that goes wrong when PyTorch code is captured.")
      .def_property_readonly(
          "id", [](const HazardRule& self) { return std::string(self.id); }, "\"PG101\".")
      .def_property_readonly(
          "kind", [](const HazardRule& self) { return std::string(self.kind); }, "The same in words.")
      .def_property_readonly(
          "severity", [](const HazardRule& self) { return std::string(in_words(self.severity)); },
          "Of most cases: \"breaks capture\", \"wrong numbers\", \"memory\", \"performance\" or \"style\".")
      .def_property_readonly(
          "title", [words](const HazardRule& self) { return words(self.title); }, "What happens.")
      .def_property_readonly(
          "why", [words](const HazardRule& self) { return words(self.why); }, "What a graph does with it.")
      .def_property_readonly(
          "fix", [words](const HazardRule& self) { return words(self.fix); }, "What to do instead.")
      .def_readonly("cuda_only", &HazardRule::cuda_only, "There is no such thing on the CPU.")
      .def("__repr__", [](const HazardRule& self) { return std::string(self.id) + " " + std::string(self.kind); });
  module.def(
      "hazard_rules",
      [] {
        const auto rules = hazard_rules();
        return std::vector<HazardRule>(rules.begin(), rules.end());
      },
      "All rules, by id.");
}

void bind_cut(py::module_& module) {
  py::class_<AuditCut>(module, "AuditCut", "Where the host waits: a graph of the step ends, and the next one begins.")
      .def_readonly("op", &AuditCut::op, "The call that does.")
      .def_property_readonly(
          "file", [](const AuditCut& self) { return self.place.file; }, "Its file; empty where it is not known.")
      .def_property_readonly(
          "line", [](const AuditCut& self) { return self.place.line; }, "In that file; 0 where it is not known.")
      .def_readonly("before", &AuditCut::before, "Operations from the cut before it, or from the begin of the step.");
}

void bind_finding(py::module_& module) {
  py::class_<Finding>(module, "Finding", "One hazard at one place.")
      .def(py::init(&make_finding), py::arg("rule"), py::kw_only(), py::arg("severity") = "", py::arg("op") = "",
           py::arg("module") = "", py::arg("place") = py::make_tuple("", "", 0), py::arg("what") = "",
           py::arg("evidence") = "", py::arg("fix") = "", py::arg("iteration") = 0, py::arg("times") = 1)
      .def_property_readonly(
          "rule", [](const Finding& self) { return std::string(self.rule->id); }, "Id of the rule: \"PG101\".")
      .def_property_readonly(
          "kind", [](const Finding& self) { return std::string(self.rule->kind); }, "The rule in words.")
      .def_property_readonly(
          "severity", [](const Finding& self) { return std::string(in_words(self.severity)); },
          "\"breaks capture\", \"wrong numbers\", \"memory\", \"performance\" or \"style\".")
      .def_readonly("op", &Finding::op, "The call that shows it; may be empty.")
      .def_readonly("module", &Finding::module, "Path of the module; empty where it is not known.")
      .def_property_readonly(
          "function", [](const Finding& self) { return self.place.function; }, "The user's function; may be empty.")
      .def_property_readonly(
          "file", [](const Finding& self) { return self.place.file; }, "Its file; empty where it is not known.")
      .def_property_readonly(
          "line", [](const Finding& self) { return self.place.line; }, "In that file; 0 where it is not known.")
      .def_property_readonly(
          "what", [](const Finding& self) { return in_python_words(self.what); }, "What happened here.")
      .def_readonly("evidence", &Finding::evidence, "What was seen; may be empty.")
      .def_property_readonly(
          "fix", [](const Finding& self) { return in_python_words(self.fix); }, "What to do here.")
      .def_readonly("iteration", &Finding::iteration,
                    "In which it was seen first; 0: before, between or after the iterations.")
      .def_readonly("times", &Finding::times, "How often.")
      .def("__repr__", [](const Finding& self) {
        return std::string(self.rule->id) + " " + std::string(self.rule->kind) + " in " + self.place.text();
      });
}

void bind_audit_report(py::module_& module) {
  py::class_<AuditReport>(module, "AuditReport", "All hazards of a step, worst first, each once.")
      .def_readonly("subject", &AuditReport::subject, "What was audited.")
      .def_readonly("device", &AuditReport::device, "Where the step computes.")
      .def_readonly("iterations", &AuditReport::iterations, "That were watched.")
      .def_readonly("operations", &AuditReport::operations, "Of the last one.")
      .def_readonly("cuts", &AuditReport::cuts, "Of the last one, in order.")
      .def_property_readonly("findings", &AuditReport::findings, "Worst first.")
      .def_property_readonly("notes", &AuditReport::notes, "What the audit could not see, and why.")
      .def_property_readonly("ok", &AuditReport::ok, "Nothing breaks the capture or makes its numbers wrong.")
      .def_property_readonly(
          "worst",
          [](const AuditReport& self) -> std::optional<std::string> {
            const auto worst = self.worst();
            return worst ? std::optional(std::string(in_words(*worst))) : std::nullopt;
          },
          "The worst severity; None where nothing was found.")
      .def_property_readonly("exit_code", &AuditReport::exit_code, "0 where ok, 3 otherwise.")
      .def(
          "to_text", [](const AuditReport& self) { return in_python_words(self.to_text()); }, "For people.")
      .def(
          "to_json", [](const AuditReport& self, int indent) { return in_python_words(self.to_json(indent)); },
          py::arg("indent") = 2, "One JSON object.")
      .def(
          "to_sarif", [](const AuditReport& self) { return in_python_words(self.to_sarif()); },
          "SARIF 2.1.0, which editors and code hosts show at the lines.")
      .def("add", &AuditReport::add, py::arg("finding"), "One more.")
      .def("kept", &kept, py::arg("keep"), "Another report, with those findings alone for which `keep` is true.")
      .def("__str__", [](const AuditReport& self) { return in_python_words(self.to_text()); });
}

void bind_session(py::module_& module) {
  py::class_<Session>(module, "AuditSession", "One audit, run by run.")
      .def(py::init([](int iterations, int warmup, bool sources, bool trial, bool restore,
                       std::vector<at::Generator> generators, int capture_warmup, std::optional<c10::Device> device,
                       std::optional<std::size_t> free_memory, std::string subject) {
             return std::make_unique<Session>(make_audit_options(iterations, warmup, sources, trial, restore,
                                                                 std::move(generators), capture_warmup, device,
                                                                 free_memory, std::move(subject)));
           }),
           py::kw_only(), py::arg("iterations"), py::arg("warmup"), py::arg("sources"), py::arg("trial"),
           py::arg("restore"), py::arg("generators"), py::arg("capture_warmup"), py::arg("device"),
           py::arg("free_memory"), py::arg("subject"))
      .def("begin_warmup", &Session::begin_warmup, NoGil(), "A run that is not compared.")
      .def("end_warmup", &Session::end_warmup, NoGil(), "It is over.")
      .def("begin", &begin, py::arg("inputs"), py::arg("names"),
           "A run begins: with these arguments, and tensors by name.")
      .def("end", &Session::end, py::arg("results"), NoGil(), "It is over, with these results.")
      .def("end_by", &end_by, py::arg("exception"), py::arg("message"), py::arg("place"), "It raised.")
      .def("watch", &watch, py::arg("python"), "Begins the watch, which tells the session of modules.")
      .def("operations", &Session::operations, "That began in this run.")
      .def("add", &Session::add, py::arg("finding"), "A hazard that was found elsewhere.")
      .def("add_note", &Session::add_note, py::arg("note"), "What the audit could not see.")
      .def("try_capture", &try_capture, py::arg("step"), py::arg("between"),
           "Captures the step, and notes what stands in the way.")
      .def("finish", &Session::finish, NoGil(), "Compares the runs, and puts state back.");
}

}  // namespace

void bind_audit(py::module_& module) {
  bind_rules(module);
  bind_finding(module);
  bind_cut(module);
  bind_audit_report(module);
  bind_session(module);
  module.def("gradient_stream", &gradient_stream, py::arg("leaf"),
             "The stream on which the leaf's gradient is accumulated, where that is known; 0 is the default stream.");
}

}  // namespace pianola::python
