#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/words.hpp>
#include <pianola/trace/describe.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace pianola::auditing {
namespace {

void written_inputs(const ObservedRuns& runs, std::size_t run, Findings& findings) {
  if (runs.run(run).inputs.empty()) return;
  for (std::size_t op = 0; op < runs.run(run).notes.size(); ++op) {
    const OpAt at{run, op};
    for (const TensorRecord& tensor : runs.inputs(at)) {
      if (!tensor.written || tensor.made_in_step) continue;
      const auto input = runs.run(run).input_at(tensor.storage, tensor.address);
      if (!input) continue;
      Finding finding = runs.finding("PG902", at);
      finding.what = fmt::format("{} writes into input {} of the step", finding.op, *input);
      findings.push_back(std::move(finding));
    }
  }
}

// Results that the run before made, that somebody holds still, and that this run made anew.
void kept_results(const ObservedRuns& runs, std::size_t run, Findings& findings) {
  const ObservedRun& before = runs.run(run - 1);
  const ObservedRun& now = runs.run(run);
  for (std::size_t i = 0; i < std::min(now.kept_results.size(), now.results.size()); ++i) {
    if (!now.kept_results[i] || before.results[i].memory.identity == now.results[i].memory.identity) continue;
    const Survivor* made = before.find_survivor(before.results[i].memory.identity);
    if (made == nullptr) continue;
    Finding finding = runs.finding("PG901", {run - 1, made->op});
    finding.what = fmt::format("result {} is still held when the next iteration is over", i);
    finding.evidence = fmt::format("made in {}, held after {}", iteration(run - 1), iteration(run));
    findings.push_back(std::move(finding));
  }
}

bool became_gradient(const ObservedRun& run, const void* storage) {
  return std::any_of(run.gradients.begin(), run.gradients.end(),
                     [&](const GradientNote& gradient) { return gradient.after.identity == storage; });
}

// A step without results: what it makes in every iteration and somebody keeps all the same. The last made is what is
// held; the rest hangs on it, as what autograd saved does.
void kept_tensors(const ObservedRuns& runs, const RunPair& pair, Findings& findings) {
  const ObservedRun& before = runs.run(pair.a);
  const ObservedRun& now = runs.run(pair.b);
  if (!before.results.empty() || !now.results.empty()) return;
  std::optional<std::uint32_t> last;
  std::size_t kept = 0;
  for (const std::size_t index : now.kept_survivors) {
    const Survivor& survivor = before.survivors[index];
    const bool anew = std::any_of(now.survivors.begin(), now.survivors.end(),
                                  [&](const Survivor& other) { return other.op == survivor.op; });
    if (!anew || survivor.op >= pair.alignment.ops || became_gradient(before, survivor.memory.identity)) continue;
    last = std::max(last.value_or(0), survivor.op);
    ++kept;
  }
  if (!last) return;
  Finding finding = runs.finding("PG901", {pair.a, *last});
  finding.what = fmt::format("what {} makes is still held when the next iteration is over", finding.op);
  finding.evidence =
      fmt::format("{} of {} held after {}", counted(kept, "tensor", "tensors"), iteration(pair.a), iteration(pair.b));
  findings.push_back(std::move(finding));
}

// Where the operations differ already, results follow.
void changed_results(const ObservedRuns& runs, const RunPair& pair, Findings& findings) {
  const auto& in_a = runs.run(pair.a).results;
  const auto& in_b = runs.run(pair.b).results;
  Finding finding = Finding::of("PG505");
  finding.iteration = static_cast<int>(pair.b) + 1;
  if (in_a.size() != in_b.size()) {
    finding.what = "the step returns another number of tensors in another iteration";
    finding.evidence =
        fmt::format("{} in {}, {} in {}", in_a.size(), iteration(pair.a), in_b.size(), iteration(pair.b));
    findings.push_back(std::move(finding));
    return;
  }
  if (!pair.alignment.complete || pair.alignment.first_change) return;
  for (std::size_t i = 0; i < in_a.size(); ++i) {
    if (in_a[i].sizes == in_b[i].sizes && in_a[i].dtype == in_b[i].dtype) continue;
    finding.what = fmt::format("result {} looks different in another iteration", i);
    finding.evidence = fmt::format("{} in {}, {} in {}", trace::type_of(in_a[i].dtype, in_a[i].sizes),
                                   iteration(pair.a), trace::type_of(in_b[i].dtype, in_b[i].sizes), iteration(pair.b));
    findings.push_back(finding);
  }
}

}  // namespace

Findings check_results(const ObservedRuns& runs) {
  Findings findings;
  for (std::size_t run = 0; run < runs.size(); ++run) written_inputs(runs, run, findings);
  for (const RunPair& pair : runs.pairs()) {
    changed_results(runs, pair, findings);
    if (pair.b != pair.a + 1) continue;
    kept_results(runs, pair.b, findings);
    kept_tensors(runs, pair, findings);
  }
  return findings;
}

}  // namespace pianola::auditing
