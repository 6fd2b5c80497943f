#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/words.hpp>
#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::auditing {
namespace {

bool draws_on_cpu(const ObservedRuns& runs, OpAt at) {
  const auto outputs = runs.outputs(at);
  return !outputs.empty() &&
         std::all_of(outputs.begin(), outputs.end(), [](const TensorRecord& output) { return output.device.is_cpu(); });
}

void unknown_generators(const ObservedRuns& runs, std::size_t run, Findings& findings) {
  for (const std::uint32_t op : runs.run(run).unknown_generators) {
    const OpAt at{run, op};
    if (runs.on_cuda() && draws_on_cpu(runs, at)) continue;
    Finding finding = runs.finding("PG601", at);
    finding.what = fmt::format("{} draws from a generator that the graph does not know", finding.op);
    findings.push_back(std::move(finding));
  }
}

// A capture on CUDA lets a step set a generator to a state that it saved itself; the tape has no such thing.
void moved_generators(const ObservedRuns& runs, std::size_t run, Findings& findings) {
  for (const GeneratorMove& move : runs.run(run).generator_moves) {
    if (move.device.type() != runs.device().type()) continue;
    if (!move.before_op) {
      Finding finding = Finding::of("PG602");
      finding.iteration = static_cast<int>(run) + 1;
      finding.what = fmt::format("a generator of {} was seeded or set inside the step", move.device.str());
      finding.evidence = "after the last operation that draws from it";
      findings.push_back(std::move(finding));
      continue;
    }
    const OpAt at{run, *move.before_op};
    const bool checkpoint = runs.called_from(at, "torch/utils/checkpoint.py", "");
    if (checkpoint && runs.on_cuda()) continue;
    Finding finding = runs.finding(checkpoint ? "PG605" : "PG602", at);
    finding.what = checkpoint
                       ? std::string("activation checkpointing sets the generator to draw the same numbers again")
                       : fmt::format("a generator of {} was seeded or set inside the step", move.device.str());
    finding.evidence = fmt::format("before {}", operation_at(runs, at));
    findings.push_back(std::move(finding));
  }
}

void cpu_draws(const ObservedRuns& runs, std::size_t run, Findings& findings) {
  for (std::size_t op = 0; op < runs.run(run).notes.size(); ++op) {
    const OpAt at{run, op};
    if (!runs.op(at).info->seeded || !draws_on_cpu(runs, at)) continue;
    Finding finding = runs.finding("PG606", at);
    finding.what = fmt::format("{} draws random numbers of the CPU", finding.op);
    findings.push_back(std::move(finding));
  }
}

}  // namespace

Findings check_random(const ObservedRuns& runs) {
  Findings findings;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    unknown_generators(runs, run, findings);
    moved_generators(runs, run, findings);
    if (runs.on_cuda()) cpu_draws(runs, run, findings);
  }
  const auto without_place = [&](const Finding& finding) { return finding.rule->id == "PG602" && finding.op.empty(); };
  const bool placed = std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
    return finding.rule->id == "PG605" || (finding.rule->id == "PG602" && !without_place(finding));
  });
  if (placed) std::erase_if(findings, without_place);
  return findings;
}

}  // namespace pianola::auditing
