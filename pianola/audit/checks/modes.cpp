#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/words.hpp>
#include <pianola/trace/odd_work.hpp>
#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::auditing {
namespace {

Finding in_iteration(std::string_view rule, std::size_t run, std::string what) {
  Finding finding = Finding::of(rule);
  finding.iteration = static_cast<int>(run) + 1;
  finding.what = std::move(what);
  return finding;
}

// A copy of a parameter that the step reads and did not make. Of one that an earlier run made it is known who did; else what
// somebody keeps himself has a name, or is an input.
bool is_of_autocast(const ObservedRuns& runs, std::size_t run, const OutsideMemory& outside) {
  const ObservedRun& seen = runs.run(run);
  const void* const copy = outside.memory.identity;
  if (outside.converted == nullptr || seen.input_at(copy, nullptr)) return false;
  for (std::size_t before = run; before-- > 0;) {
    const Survivor* const made = runs.run(before).find_survivor(copy);
    if (made != nullptr) return runs.note({before, made->op}).autocast_cast;
  }
  return seen.autocast_stays || (!seen.names.empty() && seen.name_of(copy, nullptr).empty());
}

// Copies that come from before the step, or outlive it. Those of a region that begins and ends in the step are made anew each
// time.
void autocast_cache(const ObservedRuns& runs, std::size_t run, Findings& findings) {
  const ObservedRun& seen = runs.run(run);
  if (seen.cached_autocast_at_begin) {
    findings.push_back(in_iteration("PG906", run, "autocast is on with its cache when the step begins"));
    return;
  }
  const auto quoted = [&](const void* parameter) {
    const std::string name = seen.name_of(parameter, nullptr);
    return name.empty() ? std::string("a parameter") : "'" + name + "'";
  };
  for (const OutsideMemory& outside : seen.outside) {
    if (!is_of_autocast(runs, run, outside)) continue;
    Finding finding = runs.finding("PG906", {run, outside.first_op});
    finding.what =
        fmt::format("{} reads a copy of {} that autocast made before the step", finding.op, quoted(outside.converted));
    findings.push_back(std::move(finding));
  }
  for (std::size_t op = 0; seen.autocast_stays && op < seen.notes.size(); ++op) {
    const OpAt at{run, op};
    if (!runs.note(at).autocast_cast) continue;
    Finding finding = runs.finding("PG906", at);
    finding.what = fmt::format("autocast converts {}, and keeps the copy when the step is over",
                               tensor_words(runs, at, runs.inputs(at)[0]));
    findings.push_back(std::move(finding));
  }
}

void anomaly_mode(const ObservedRuns& runs, std::size_t run, Findings& findings) {
  const auto first = runs.run(run).anomaly_op;
  if (runs.run(run).anomaly_at_begin) {
    findings.push_back(in_iteration("PG1008", run, "autograd's anomaly mode is on when the step begins"));
  } else if (first) {
    Finding finding = runs.finding("PG1008", {run, *first});
    finding.op.clear();
    finding.what = "autograd's anomaly mode is on in the step";
    findings.push_back(std::move(finding));
  }
}

bool computes(const ObservedRuns& runs, OpAt at) {
  const OpRecord& op = runs.op(at);
  if (op.info->is_view || op.info->is_empty) return false;
  const auto on_device = [&](const TensorRecord& tensor) { return tensor.device.type() == runs.device().type(); };
  const auto inputs = runs.inputs(at);
  const auto outputs = runs.outputs(at);
  return std::any_of(inputs.begin(), inputs.end(), on_device) || std::any_of(outputs.begin(), outputs.end(), on_device);
}

}  // namespace

Findings check_modes(const ObservedRuns& runs) {
  Findings findings;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    autocast_cache(runs, run, findings);
    anomaly_mode(runs, run, findings);
  }
  return findings;
}

Findings check_plain(const ObservedRuns& runs) {
  Findings findings;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const std::optional<trace::OddWork>& odd = runs.run(run).odd_work;
    if (!odd) continue;
    Finding finding = in_iteration(trace::rule_of(odd->oddity), run, odd->what);
    finding.op = odd->op;
    finding.module = odd->scope;
    finding.place = odd->site.place();
    finding.fix = trace::remedy_of(odd->oddity);
    findings.push_back(std::move(finding));
  }
  return findings;
}

Findings check_work(const ObservedRuns& runs) {
  if (runs.size() == 0) return {};
  for (std::size_t run = 0; run < runs.size(); ++run) {
    if (runs.run(run).threw || runs.run(run).odd_work) return {};
    for (std::size_t op = 0; op < runs.run(run).notes.size(); ++op) {
      if (computes(runs, {run, op})) return {};
    }
  }
  return {Finding::of("PG1201")};
}

}  // namespace pianola::auditing
