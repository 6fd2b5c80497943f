#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/words.hpp>
#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <string_view>

namespace pianola::auditing {
namespace {

std::string_view rule_of(TensorChange kind) {
  switch (kind) {
    case TensorChange::shape:
      return "PG502";
    case TensorChange::dtype:
      return "PG503";
    case TensorChange::strides:
      return "PG504";
    case TensorChange::device:
    case TensorChange::none:
      break;
  }
  return "PG501";
}

std::string looks(const OpTrace& trace, const TensorRecord& tensor, TensorChange kind) {
  switch (kind) {
    case TensorChange::strides:
      return "strides " + listed(trace.strides(tensor));
    case TensorChange::device:
      return "on " + tensor.device.str();
    case TensorChange::shape:
    case TensorChange::dtype:
    case TensorChange::none:
      break;
  }
  return described(trace, tensor);
}

std::string_view noun(TensorChange kind) {
  switch (kind) {
    case TensorChange::shape:
      return "another shape";
    case TensorChange::dtype:
      return "another dtype";
    case TensorChange::strides:
      return "other strides";
    case TensorChange::device:
    case TensorChange::none:
      break;
  }
  return "another device";
}

// "input 0 has another shape"; of a tensor without a name, the operation says which it is.
std::string subject_of(const ObservedRuns& runs, OpAt at, const FirstChange& change, const TensorRecord& tensor) {
  if (change.result) return "the result of " + runs.op_name(at);
  const ObservedRun& run = runs.run(at.run);
  const bool named =
      run.input_at(tensor.storage, tensor.address).has_value() || !run.name_of(tensor.storage, tensor.address).empty();
  if (named && !tensor.made_in_step) return tensor_words(runs, at, tensor);
  return fmt::format("'{}' of {}", argument_name(runs.op(at), tensor.argument), runs.op_name(at));
}

// A shape that depends on values differs as they do; that it does is a finding of its own.
bool follows_from_values(const ObservedRuns& runs, const RunPair& pair) {
  const FirstChange& change = *pair.alignment.first_change;
  return change.result && runs.op({pair.a, change.op}).host_read;
}

// Runs that go different ways may come by the same operator on other tensors of the model.
bool is_on_another_way(const ObservedRuns& runs, const RunPair& pair) {
  const FirstChange& change = *pair.alignment.first_change;
  if (pair.alignment.complete || change.result) return false;
  const TensorRecord& in_a = runs.inputs({pair.a, change.op})[change.tensor];
  const TensorRecord& in_b = runs.inputs({pair.b, change.op})[change.tensor];
  const OutsideMemory* before = runs.run(pair.a).find_outside(in_a.storage);
  return !in_a.made_in_step && !in_b.made_in_step && in_a.storage != in_b.storage && before != nullptr &&
         before->memory.alive() && !runs.run(pair.a).input_at(in_a.storage, in_a.address);
}

Finding changed_tensor(const ObservedRuns& runs, const RunPair& pair) {
  const FirstChange& change = *pair.alignment.first_change;
  const OpAt a{pair.a, change.op};
  const OpAt b{pair.b, change.op};
  const TensorRecord& in_a = (change.result ? runs.outputs(a) : runs.inputs(a))[change.tensor];
  const TensorRecord& in_b = (change.result ? runs.outputs(b) : runs.inputs(b))[change.tensor];
  const bool other_way = is_on_another_way(runs, pair);
  Finding finding = runs.finding(other_way ? "PG501" : rule_of(change.kind), a);
  finding.iteration = static_cast<int>(pair.b) + 1;
  finding.what =
      other_way ? fmt::format("another iteration runs {} on another tensor", finding.op)
                : fmt::format("{} has {} in another iteration", subject_of(runs, b, change, in_b), noun(change.kind));
  finding.evidence =
      fmt::format("{} in {}, {} in {}", looks(runs.run(pair.a).trace, in_a, change.kind), iteration(pair.a),
                  looks(runs.run(pair.b).trace, in_b, change.kind), iteration(pair.b));
  return finding;
}

// One run goes on where the other has ended.
Finding longer_run(const ObservedRuns& runs, const RunPair& pair) {
  const std::size_t same = pair.alignment.ops;
  const bool a_goes_on = runs.run(pair.a).notes.size() > same;
  const OpAt next{a_goes_on ? pair.a : pair.b, same};
  Finding finding = runs.finding("PG501", next);
  finding.what = fmt::format("another iteration ends before {}", finding.op);
  finding.evidence =
      fmt::format("{} ends after {}, {} goes on with {}", iteration(a_goes_on ? pair.b : pair.a),
                  counted(same, "operation", "operations"), iteration(next.run), operation_at(runs, next));
  return finding;
}

Finding other_operation(const ObservedRuns& runs, const RunPair& pair) {
  const OpAt a{pair.a, pair.alignment.ops};
  const OpAt b{pair.b, pair.alignment.ops};
  const bool same_operator = runs.op(a).info == runs.op(b).info && runs.op(a).backward == runs.op(b).backward;
  Finding finding = runs.finding(same_operator ? "PG502" : "PG501", a);
  finding.iteration = static_cast<int>(pair.b) + 1;
  if (same_operator) {
    finding.what = fmt::format("{} takes or makes another number of tensors in another iteration", finding.op);
    finding.evidence = fmt::format("{} and {} in {}, {} and {} in {}", runs.op(a).inputs, runs.op(a).outputs,
                                   iteration(pair.a), runs.op(b).inputs, runs.op(b).outputs, iteration(pair.b));
    return finding;
  }
  finding.what = fmt::format("another iteration runs {} instead of {}", runs.op_name(b), finding.op);
  finding.evidence = fmt::format("operation {}: {} in {}, {} in {}", pair.alignment.ops + 1, operation_at(runs, a),
                                 iteration(pair.a), operation_at(runs, b), iteration(pair.b));
  return finding;
}

// Whether a gradient is there decides what accumulating into it takes; that it was dropped is a finding of its own.
bool is_accumulation(const ObservedRuns& runs, const RunPair& pair) {
  const auto accumulates = [&](std::size_t run) {
    const ObservedRun& observed = runs.run(run);
    const std::size_t op = pair.alignment.ops;
    return op < observed.notes.size() &&
           observed.nodes[observed.notes[op].node].find("AccumulateGrad") != std::string::npos;
  };
  return (accumulates(pair.a) || accumulates(pair.b)) && gradients_were_dropped(runs, pair);
}

}  // namespace

Findings check_control_flow(const ObservedRuns& runs) {
  Findings findings;
  for (const RunPair& pair : runs.pairs()) {
    if (pair.alignment.first_change) {
      if (!follows_from_values(runs, pair)) findings.push_back(changed_tensor(runs, pair));
      continue;
    }
    if (pair.alignment.complete || is_accumulation(runs, pair)) continue;
    const bool one_ended =
        pair.alignment.ops == runs.run(pair.a).notes.size() || pair.alignment.ops == runs.run(pair.b).notes.size();
    findings.push_back(one_ended ? longer_run(runs, pair) : other_operation(runs, pair));
  }
  return findings;
}

}  // namespace pianola::auditing
