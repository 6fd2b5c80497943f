#include <pianola/verify/investigation.hpp>

#include <pianola/trace/nondeterministic.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/verify/dependence.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <string_view>
#include <utility>

namespace pianola::verification {
namespace {

// Where eager's operations may give other bits from run to run, one equal run proves little.
constexpr int kMoreRepeats = 2;

// The first line says it; the rest is for those who called.
std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

std::vector<TensorDifference> differences_of(Comparison comparison) {
  std::vector<TensorDifference> differences;
  for (Mismatch& mismatch : comparison.mismatches) differences.push_back(std::move(mismatch.difference));
  return differences;
}

// Nearest to the cause first; what no operation writes comes last.
void sort(std::vector<TensorDifference>& differences, const std::map<std::string, std::size_t>& writers) {
  std::ranges::stable_sort(differences, {}, [&](const TensorDifference& difference) {
    const auto found = writers.find(difference.name);
    return found == writers.end() ? std::numeric_limits<std::size_t>::max() : found->second;
  });
}

c10::Device device_of(const std::vector<Pair>& pairs, const at::Tensor& tensor) {
  if (tensor.defined() && tensor.is_cuda()) return tensor.device();
  for (const Pair& pair : pairs) {
    if (pair.graphed.defined() && pair.graphed.is_cuda()) return pair.graphed.device();
  }
  return c10::Device(c10::kCPU);
}

const TraceChange* change_at(const std::vector<TraceChange>& changes, std::size_t op) {
  const auto found = std::ranges::find(changes, op, &TraceChange::op);
  return found == changes.end() ? nullptr : &*found;
}

}  // namespace

// Note [Coming to a step once more]
// With `reset`, eager starts over. Without, what `between` did to the host cannot be taken back: eager goes on from what
// it left behind the step before, and `between` runs once more, which is right where it does what its argument says.
void Investigation::go_to(int step) {
  if (runner_.options().reset || step == 1) {
    runner_.rewind(Side::eager);
    for (int before = 1; before < step; ++before) {
      (void)runner_.run(Side::eager, before);
      runner_.between(before);
    }
  } else {
    runner_.state().load(records_[static_cast<std::size_t>(step) - 2].state);
    runner_.between(step - 1);
  }
}

bool Investigation::first_step_is_gone() const {
  const VerifyOptions& options = runner_.options();
  return options.between && !options.reset && records_.size() > 1;
}

Comparison Investigation::compare_with_record(int step, const Outcome& outcome) const {
  const StepRecord& record = records_[static_cast<std::size_t>(step) - 1];
  return compare(runner_.pairs(record, outcome), runner_.options().tolerance, step,
                 {.one = "the first run", .other = "the second"});
}

Investigation::Again Investigation::repeat(int until, const ObserveOptions& options) {
  if (runner_.options().reset) {
    runner_.rewind(Side::eager);
    for (int step = 1; step < until; ++step) {
      ObservedStep observed = observe(runner_, step, {.sites = false, .values = false});
      Comparison comparison = compare_with_record(step, observed.outcome);
      if (!comparison.mismatches.empty()) {
        auto pairs = runner_.pairs(records_[static_cast<std::size_t>(step) - 1], observed.outcome);
        return {step, std::move(observed), std::move(comparison), std::move(pairs)};
      }
      runner_.between(step);
    }
  } else {
    go_to(until);
  }
  ObservedStep observed = observe(runner_, until, options);
  Comparison comparison = compare_with_record(until, observed.outcome);
  auto pairs = runner_.pairs(records_[static_cast<std::size_t>(until) - 1], observed.outcome);
  return {until, std::move(observed), std::move(comparison), std::move(pairs)};
}

// The difference stands, whatever goes wrong while it is looked into.
void Investigation::of_graph(int step, Comparison comparison) {
  const VerifyOptions& options = runner_.options();
  const bool graph_alone_has_nan = std::ranges::any_of(comparison.mismatches, &Mismatch::graph_has_nan);
  report_.verdict = Verdict::differs;
  report_.differences = differences_of(std::move(comparison));
  sort(report_.differences, first_.writers);
  if (graph_alone_has_nan && options.poison) {
    note(
        "the graph computes NaN and eager does not: it may read memory that this step did not write (a result of the "
        "step before, or memory that no tensor holds), which verify fills with NaN (VerifyOptions::poison)");
  }
  if (!options.repeat_eager && !options.narrow) return;
  try {
    look_into(step);
  } catch (const std::exception& error) {
    note(fmt::format("eager could not be run again to look into it: {}", first_line(error.what())));
  }
}

void Investigation::look_into(int step) {
  const VerifyOptions& options = runner_.options();
  const ObserveOptions what = {.sites = options.narrow, .values = options.narrow};
  Again eager = repeat(step, what);
  const bool may_vary = !trace::nondeterministic_operators(eager.observed.trace).empty();
  for (int more = 0; more < kMoreRepeats && may_vary && options.repeat_eager && eager.comparison.mismatches.empty();
       ++more) {
    eager = repeat(step, what);
  }
  const bool repeats = eager.comparison.mismatches.empty();
  if (!repeats && eager.step == 1 && first_step_is_gone()) {
    note(
        "the first step cannot be repeated, because `between` changed what it reads on the host: set "
        "VerifyOptions::reset, which puts that back");
    note_first_writer(first_, report_.differences.front().name);
  } else if (!repeats && options.repeat_eager) {
    of_eager(eager.step, std::move(eager.comparison), eager.observed);
  } else {
    sort(report_.differences, eager.observed.writers);
    if (options.narrow) narrow_graph(step, eager, report_.differences.front().name);
  }
}

void Investigation::of_eager(int step, Comparison comparison, const ObservedStep& observed) {
  report_.verdict = Verdict::nondeterministic;
  report_.eager_differences = differences_of(std::move(comparison));
  sort(report_.eager_differences, observed.writers);
  note_random_operators();
  if (!runner_.missing().empty()) {
    note(
        "memory that an earlier step made, and that `state` does not list, is put back to its first contents, not "
        "removed: make such state (an optimizer's) before verifying, and list it");
  }
  if (!runner_.options().reset) {
    note(
        "what a step or `between` changes on the host (a count, a learning rate, Python's random numbers) is put back "
        "only by VerifyOptions::reset");
  }
  if (!runner_.options().narrow) return;
  try {
    narrow_eager(step);
  } catch (const std::exception& error) {
    note(fmt::format("where it starts could not be found: {}", first_line(error.what())));
  }
}

void Investigation::note_random_operators() {
  const std::vector<std::string> names = trace::nondeterministic_operators(first_.trace);
  if (names.empty()) return;
  note(
      fmt::format("these operators may give other bits from run to run: {}; deterministic algorithms "
                  "(at::globalContext().setDeterministicAlgorithms, torch.use_deterministic_algorithms) prevent that",
                  fmt::join(names, ", ")));
}

// Two runs, each with all its values.
void Investigation::narrow_eager(int step) {
  go_to(step);
  const ObservedStep one = observe(runner_, step, {});
  go_to(step);
  const ObservedStep other = observe(runner_, step, {});
  const std::vector<TraceChange> changes =
      changes_between({.trace = &one.trace, .own = one.own, .when = "in the run before"},
                      {.trace = &other.trace, .own = other.own, .when = {}});
  const std::optional<Parting> parting = where_they_part(one.values.all(), other.values.all());
  if (!parting) {
    if (!changes.empty()) report_.origin = describe(other.trace, changes.front().op, changes.front().what);
    return;
  }
  const TraceChange* change = change_at(changes, parting->op);
  report_.origin = describe(one.trace, parting->op, change == nullptr ? parting->what : change->what);
}

std::vector<TraceChange> Investigation::changes_since_first(const Again& eager) const {
  if (eager.step == 1) return {};
  return changes_between({.trace = &first_.trace, .own = first_.own, .when = "in step 1"},
                         {.trace = &eager.observed.trace, .own = eager.observed.own, .when = {}});
}

std::optional<DifferenceOrigin> Investigation::origin_by_capture(const Again& eager, const at::Tensor& tensor,
                                                                 std::string& why_not) {
  if (const std::string& trouble = eager.observed.values.trouble(); !trouble.empty()) {
    why_not = fmt::format("the values of eager's operations could not be kept: {}", first_line(trouble));
    return std::nullopt;
  }
  try {
    const std::vector<OpValue> replayed =
        values_of_a_capture(runner_, device_of(eager.pairs, tensor), eager.step, [&] { go_to(eager.step); });
    const std::optional<Parting> parting = where_they_part(eager.observed.values.all(), replayed);
    if (!parting || (tensor.defined() && !reaches(eager.observed.trace, parting->op, tensor))) {
      why_not =
          "a capture of eager computes what eager does, operation by operation: the difference lies in how the graphed "
          "side was captured, or is used";
      return std::nullopt;
    }
    return describe(eager.observed.trace, parting->op, parting->what + " when eager is captured and replayed");
  } catch (const std::exception& error) {
    why_not =
        fmt::format("eager could not be captured to compare its operations one by one: {}", first_line(error.what()));
    return std::nullopt;
  }
}

void Investigation::narrow_graph(int step, const Again& eager, const std::string& name) {
  const auto pair = std::ranges::find(eager.pairs, name, &Pair::name);
  const at::Tensor tensor = pair == eager.pairs.end() || pair->role == "generator" ? at::Tensor() : pair->graphed;
  const auto leads_there = [&](const TraceChange& change) {
    return !tensor.defined() || reaches(eager.observed.trace, change.op, tensor);
  };
  const std::vector<TraceChange> changes = changes_since_first(eager);
  std::string why_not;
  report_.origin = origin_by_capture(eager, tensor, why_not);
  if (report_.origin) {
    const TraceChange* change = change_at(changes, report_.origin->number - 1);
    if (change != nullptr) report_.origin->what = change->what + ": a graph keeps what it was captured with";
    return;
  }
  if (const auto change = std::ranges::find_if(changes, leads_there); change != changes.end()) {
    report_.origin = describe(eager.observed.trace, change->op, change->what);
    return;
  }
  const std::vector<TraceChange> numbers = host_numbers(eager.observed.trace);
  if (const auto number = std::ranges::find_if(numbers, leads_there); step > 1 && number != numbers.end()) {
    report_.origin = describe(eager.observed.trace, number->op, number->what);
    return;
  }
  note(std::move(why_not));
  note_first_writer(eager.observed, name);
}

void Investigation::note_first_writer(const ObservedStep& observed, const std::string& name) {
  const auto writer = observed.writers.find(name);
  if (writer == observed.writers.end()) return;
  const DifferenceOrigin at = describe(observed.trace, writer->second, "");
  const std::string place = at.place.text();
  note(fmt::format("'{}' is first written by operation {} ({}{})", name, at.number, at.op,
                   place.empty() ? "" : ", " + place));
}

}  // namespace pianola::verification
