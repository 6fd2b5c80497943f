#include <pianola/audit/trial.hpp>

#include <pianola/audit/cuda_side.hpp>
#include <pianola/audit/message_of.hpp>
#include <pianola/core/hazard_rule.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_trace.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <string_view>

namespace pianola::auditing {
namespace {

// "operation 41 of the step": the trace of a run has the same operations as the capture, where nothing else differs.
std::optional<OpAt> operation_in(const std::string& where, const ObservedRuns& runs) {
  constexpr std::string_view kBefore = "operation ";
  const std::size_t at = where.find(kBefore);
  if (at == std::string::npos || runs.size() == 0) return std::nullopt;
  std::size_t number = 0;
  const char* const first = where.data() + at + kBefore.size();
  const auto [end, error] = std::from_chars(first, where.data() + where.size(), number);
  if (error != std::errc() || !std::string_view(end).starts_with(" of the step")) return std::nullopt;
  const std::size_t last = runs.size() - 1;
  if (number == 0 || number > runs.run(last).notes.size()) return std::nullopt;
  const OpAt found{last, number - 1};
  const std::string place = runs.place(found).text();
  return place.empty() || where.find(place) == std::string::npos ? std::nullopt : std::optional(found);
}

Finding finding_of(const Diagnosis& refusal, const ObservedRuns& runs) {
  const std::string rule = refusal.rule.empty() ? "PG1203" : refusal.rule;
  const auto at = operation_in(refusal.where, runs);
  Finding finding = at ? runs.finding(rule, *at) : Finding::of(rule);
  finding.iteration = 0;
  finding.severity = Severity::breaks_capture;
  finding.what = refusal.what;
  finding.evidence =
      refusal.where.empty() ? "seen when the step was captured" : "seen when the step was captured: " + refusal.where;
  if (!refusal.fix.empty()) finding.fix = refusal.fix;
  return finding;
}

bool is_known(const Finding& news, const Diagnosis& refusal, const AuditReport& report) {
  return std::any_of(report.findings().begin(), report.findings().end(), [&](const Finding& known) {
    const std::string place = known.place.text();
    const bool same_line = !place.empty() && refusal.where.find(place) != std::string::npos;
    return known.rule == news.rule || same_line || (news.place.known() && news.place == known.place);
  });
}

// What computes in forward: backward adds up gradients in another way where somebody holds them, as a capture does.
std::vector<const OpRecord*> path_of(const OpTrace& trace) {
  std::vector<const OpRecord*> path;
  for (const OpRecord& op : trace.ops()) {
    const std::string& name = trace.name(op);
    const bool moves = op.info->is_view || op.info->is_empty || name == "aten::clone" || name == "aten::copy_" ||
                       name == "aten::_to_copy" || name == "aten::lift_fresh";
    if (!op.backward && !moves) path.push_back(&op);
  }
  return path;
}

// Code that asks whether a capture is open may compute something else in it.
std::optional<Finding> other_path_in(const OpTrace& captured, const OpTrace& eager) {
  const std::vector<const OpRecord*> now = path_of(captured), before = path_of(eager);
  std::size_t i = 0;
  // Gradients are added up in place where nobody else holds them, as a capture does.
  while (i < now.size() && i < before.size() && now[i]->info->computes_as(*before[i]->info)) ++i;
  if (i == now.size() && i == before.size()) return std::nullopt;
  const auto name = [&](const OpTrace& trace, const std::vector<const OpRecord*>& path) {
    return i < path.size() ? trace.name(*path[i]) : std::string("nothing more");
  };
  Finding finding = Finding::of("PG501");
  finding.op = i < now.size() ? captured.name(*now[i]) : "";
  finding.place = i < now.size() ? captured.source(*now[i]) : eager.source(*before[i]);
  finding.what =
      fmt::format("the step runs {} while it is captured, and {} eagerly", name(captured, now), name(eager, before));
  finding.severity = Severity::style;  // libraries do so with care: their masks, for one
  finding.evidence = "code that asks whether a capture is open does so";
  return finding;
}

}  // namespace

Trial try_capture_of(c10::Device device, const std::function<void()>& step, const std::function<void()>& between,
                     const OpTrace& eager, const AuditOptions& options) {
  Trial trial;
  const auto watched_between = [&] {
    try {
      if (between) between();
    } catch (const std::exception& error) {
      trial.between_failed = message_of(error);
      throw;
    }
  };
  try {
    Graph graph(device);
    graph.capture(step, {.warmup = 0, .generators = options.generators, .names = options.names});
    trial.warnings = graph.info().warnings;
    // Only there is a capture something that code can ask for.
    if (device.is_cuda()) trial.other_path = other_path_in(*graph.trace(), eager);
    graph.reset();
    trial.kernel_findings = compare_kernel_arguments(device, step, watched_between, options);
  } catch (const CaptureError& error) {
    trial.refusal = error.diagnosis();
  } catch (const std::exception& error) {
    if (trial.between_failed.empty()) trial.thrown = message_of(error);
  }
  return trial;
}

void add_trial(const Trial& trial, const ObservedRuns& runs, AuditReport& report) {
  const auto worst = report.worst();
  const bool broken = worst == Severity::breaks_capture;
  if (trial.refusal && !broken) {
    Finding news = finding_of(*trial.refusal, runs);
    if (!is_known(news, *trial.refusal, report)) report.add(std::move(news));
  }
  if (!trial.thrown.empty() && !broken) {
    Finding finding = Finding::of("PG1202");
    finding.what = "the step fails when it is captured, and did not before";
    finding.evidence = trial.thrown;
    report.add(std::move(finding));
  }
  if (trial.other_path && (!worst || *worst > Severity::wrong_numbers)) report.add(*trial.other_path);
  if (!trial.between_failed.empty()) {
    report.add_note("the arguments of kernels were not compared: `between` failed after a capture: " +
                    trial.between_failed);
  }
  for (const std::string& warning : trial.warnings) report.add_note("a capture warns: " + warning);
  for (const Finding& finding : trial.kernel_findings) report.add(finding);
}

}  // namespace pianola::auditing
