#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/other_tensors.hpp>
#include <pianola/audit/words.hpp>
#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace pianola::auditing {
namespace {

bool was_gradient(const ObservedRun& run, const void* storage) {
  return std::any_of(run.gradients.begin(), run.gradients.end(),
                     [&](const GradientNote& gradient) { return gradient.before.identity == storage; });
}

// A view that the step itself made of the memory, at another place in each run: by a number that changes.
bool is_view_of_step(const ObservedRuns& runs, OpAt at, const TensorRecord& tensor) {
  for (std::size_t op = at.op; op-- > 0;) {
    for (const TensorRecord& result : runs.outputs({at.run, op})) {
      if (result.storage == tensor.storage && result.address == tensor.address) return true;
    }
  }
  return false;
}

// Made in the step by no operation: what it holds is compared as numbers are.
bool is_made_by_host(const ObservedRun& run, const void* storage) {
  const OutsideMemory* outside = run.find_outside(storage);
  return outside == nullptr || outside->made_by_host || (outside->foreign && !outside->alive_at_end);
}

// Memory of NumPy's or of the user's own, which lives on when the tensor that looks at it is replaced.
bool is_foreign(const ObservedRun& run, const void* storage) {
  const OutsideMemory* outside = run.find_outside(storage);
  return outside != nullptr && outside->foreign;
}

bool is_lifted(const ObservedRun& run, const void* storage) {
  return std::any_of(run.host_values.begin(), run.host_values.end(), [&](const HostValues& values) {
    const OpRecord& op = run.trace.ops()[values.op];
    return op.info->name == "aten::lift_fresh" && run.trace.inputs(op)[values.tensor].storage == storage;
  });
}

// The run whose step made the memory that a later one reads.
std::optional<std::size_t> made_by_run(const ObservedRuns& runs, const ArgumentPair& moved) {
  for (std::size_t run = 0; run < moved.b.run; ++run) {
    if (runs.run(run).find_survivor(moved.in_b.storage) != nullptr) return run;
  }
  return std::nullopt;
}

// Where two runs go different ways they come by the same operators on other tensors, which nobody replaced.
bool is_on_another_way(const ObservedRuns& runs, const ArgumentPair& moved) {
  const OutsideMemory* before = runs.run(moved.a.run).find_outside(moved.in_a.storage);
  return before != nullptr && before->memory.alive() && made_by_run(runs, moved) == std::nullopt;
}

bool has_moved(const ObservedRuns& runs, const ArgumentPair& moved) {
  const TensorRecord& a = moved.in_a;
  const TensorRecord& b = moved.in_b;
  if (a.number || b.number || a.made_in_step || b.made_in_step || a.storage == nullptr || b.storage == nullptr) {
    return false;
  }
  const ObservedRun& run_a = runs.run(moved.a.run);
  const ObservedRun& run_b = runs.run(moved.b.run);
  if (run_a.is_gradient_of_input(a.storage) || run_b.is_gradient_of_input(b.storage)) return false;
  if (a.storage == b.storage) {
    if (a.address == b.address) return false;
    const OutsideMemory* before = run_a.find_outside(a.storage);
    const OutsideMemory* after = run_b.find_outside(b.storage);
    const bool reallocated = before != nullptr && after != nullptr && before->data != after->data;
    return reallocated || (!is_view_of_step(runs, moved.a, a) && !is_view_of_step(runs, moved.b, b) &&
                           !run_a.input_at(a.storage, a.address));
  }
  if (run_a.input_at(a.storage, a.address) && run_b.input_at(b.storage, b.address)) return false;
  if (is_made_by_host(run_a, a.storage) && is_made_by_host(run_b, b.storage)) return false;
  if (a.address == b.address && is_foreign(run_a, a.storage) && is_foreign(run_b, b.storage)) return false;
  return !is_lifted(run_a, a.storage) || !is_lifted(run_b, b.storage);
}

bool was_dropped_outside(const ObservedRuns& runs, const ArgumentPair& moved) {
  const auto& gradients_a = runs.run(moved.a.run).gradients;
  const auto& gradients_b = runs.run(moved.b.run).gradients;
  for (std::size_t leaf = 0; leaf < std::min(gradients_a.size(), gradients_b.size()); ++leaf) {
    if (gradients_b[leaf].before.identity != moved.in_b.storage) continue;
    return gradient_was_dropped(gradients_a[leaf], gradients_b[leaf]);
  }
  return false;
}

std::string_view rule_of(const ObservedRuns& runs, const ArgumentPair& moved) {
  const ObservedRun& run_a = runs.run(moved.a.run);
  const ObservedRun& run_b = runs.run(moved.b.run);
  const OutsideMemory* before = run_a.find_outside(moved.in_a.storage);
  const OutsideMemory* after = run_b.find_outside(moved.in_b.storage);
  const bool made = made_by_run(runs, moved).has_value();
  const bool is_leaf = (before != nullptr && before->leaf != nullptr) || (after != nullptr && after->leaf != nullptr);
  if (uses_other_parameter(runs, moved) && (!made || was_gradient(run_b, moved.in_b.storage))) return "PG501";
  if ((made || is_leaf) && both_stay(runs, moved)) return "PG501";  // an optimizer's state, of another parameter
  if (was_gradient(run_b, moved.in_b.storage) && was_dropped_outside(runs, moved)) return "PG403";
  if (is_leaf) return "PG402";
  if (made) return "PG802";
  const bool freed = before != nullptr && !before->memory.alive();
  return freed && moved.in_a.address == moved.in_b.address ? "PG404" : "PG401";
}

// Names may be known in one of the runs alone.
std::string words_for(const ObservedRuns& runs, const ArgumentPair& moved) {
  std::string words = tensor_words(runs, moved.b, moved.in_b);
  const std::string old = runs.run(moved.a.run).name_of(moved.in_a.storage, moved.in_a.address);
  return words.front() == '\'' || old.empty() ? words : "'" + old + "'";
}

std::string what_of(const ObservedRuns& runs, const ArgumentPair& moved, const std::string& words,
                    std::string_view rule) {
  if (rule == "PG501") return words;
  if (rule == "PG802") return words + " is given another tensor by the step, which the next iteration reads";
  if (rule == "PG404") return words + " was freed and made anew between iterations";
  if (rule == "PG402") return fmt::format("the memory of the parameter {} was replaced between iterations", words);
  if (moved.in_a.storage == moved.in_b.storage) return words + " looks at another place of its memory";
  if (both_stay(runs, moved)) return other_tensor_words(runs, moved);
  return words + " was replaced by another tensor between iterations";
}

std::string evidence_of(const ObservedRuns& runs, const ArgumentPair& moved, std::string_view rule) {
  std::string evidence = fmt::format("{} used the memory at {}, {} that at {}", iteration(moved.a.run),
                                     address(moved.in_a.address), iteration(moved.b.run), address(moved.in_b.address));
  if (rule == "PG404") return evidence + ": the same address by chance, the first tensor is gone";
  if (const auto run = made_by_run(runs, moved)) {
    const Survivor* survivor = runs.run(*run).find_survivor(moved.in_b.storage);
    return fmt::format("{}, made by {} in {}", evidence, operation_at(runs, {*run, survivor->op}), iteration(*run));
  }
  const OutsideMemory* before = runs.run(moved.a.run).find_outside(moved.in_a.storage);
  return before != nullptr && !before->memory.alive() ? evidence + "; the first one was freed" : evidence;
}

Finding describe(const ObservedRuns& runs, const ArgumentPair& moved, const std::string& words, std::string_view rule) {
  Finding finding = runs.finding(rule, moved.b);
  finding.what = what_of(runs, moved, words, rule);
  finding.evidence = evidence_of(runs, moved, rule);
  if (rule == "PG404") finding.severity = Severity::wrong_numbers;  // what replaced it is not read
  return finding;
}

// Of all pairs of runs: an argument that moves is called the same each time, by the first name that it has.
class MovedTensors {
 public:
  explicit MovedTensors(const ObservedRuns& runs) : runs_(runs) {}

  void compare(const RunPair& pair) {
    std::set<std::pair<const void*, const void*>> told;
    const bool same_way = pair.alignment.complete || stops_at_accumulation(runs_, pair);
    for (std::size_t op = 0; op < pair.alignment.ops; ++op) {
      const auto in_a = runs_.inputs({pair.a, op});
      const auto in_b = runs_.inputs({pair.b, op});
      for (std::size_t i = 0; i < in_a.size(); ++i) {
        const ArgumentPair moved{.a = {pair.a, op}, .b = {pair.b, op}, .in_a = in_a[i], .in_b = in_b[i]};
        if (!has_moved(runs_, moved) || (!same_way && is_on_another_way(runs_, moved))) continue;
        if (told.insert({in_a[i].storage, in_b[i].storage}).second) add(moved, {op, i});
      }
    }
  }

  [[nodiscard]] Findings findings() const {
    Findings findings;
    for (const auto& [moved, argument] : moved_) {
      const auto& [rule, words] = arguments_.at(argument);
      if (rule == "PG501" && has_other_parameters_ && was_gradient(runs_.run(moved.b.run), moved.in_b.storage))
        continue;
      findings.push_back(describe(runs_, moved, words, rule));
    }
    return findings;
  }

 private:
  using Argument = std::pair<std::size_t, std::size_t>;  // operation, index among its inputs
  struct Name {
    std::string_view rule;
    std::string words;
  };

  // That a tensor came back to the address of one that was freed is said only where it always did.
  void add(const ArgumentPair& moved, Argument argument) {
    const std::string_view rule = rule_of(runs_, moved);
    const auto [known, is_first] = arguments_.try_emplace(argument, Name{rule, words_for(runs_, moved)});
    Name& name = known->second;
    const bool decides = is_first || name.rule == "PG404";
    if (decides) name.rule = rule;
    if (name.rule == "PG501") {
      if (decides) name.words = other_tensor_words(runs_, moved);
      has_other_parameters_ = has_other_parameters_ || !was_gradient(runs_.run(moved.b.run), moved.in_b.storage);
    }
    moved_.emplace_back(moved, argument);
  }

  const ObservedRuns& runs_;
  std::vector<std::pair<ArgumentPair, Argument>> moved_;
  std::map<Argument, Name> arguments_;
  bool has_other_parameters_ = false;  // whose gradients are others, too
};

}  // namespace

Findings check_moved_memory(const ObservedRuns& runs) {
  MovedTensors moved(runs);
  for (const RunPair& pair : runs.pairs()) moved.compare(pair);
  return moved.findings();
}

}  // namespace pianola::auditing
