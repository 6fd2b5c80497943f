#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/other_tensors.hpp>
#include <pianola/audit/switched_leaves.hpp>
#include <pianola/audit/words.hpp>
#include <pianola/trace/op_info.hpp>

#include <ATen/core/jit_type.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
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

// The forward operation's index, of one in backward.
std::optional<std::size_t> forward_index(const ObservedRuns& runs, OpAt at) {
  const OpTrace& trace = runs.run(at.run).trace;
  const OpRecord* forward = trace.forward_of(runs.op(at));
  if (forward == nullptr) return std::nullopt;
  return static_cast<std::size_t>(forward - trace.ops().data());
}

// Runs that go different ways may come by the same operator in another part of the step, or on other tensors of the model.
bool is_on_another_way(const ObservedRuns& runs, const RunPair& pair) {
  const FirstChange& change = *pair.alignment.first_change;
  const OpAt a{pair.a, change.op}, b{pair.b, change.op};
  if (forward_index(runs, a) != forward_index(runs, b)) return true;
  if (change.result) return false;
  const TensorRecord& in_a = runs.inputs(a)[change.tensor];
  const TensorRecord& in_b = runs.inputs(b)[change.tensor];
  if (in_a.made_in_step != in_b.made_in_step) return !in_a.number && !in_b.number;
  if (uses_other_parameter(runs, {.a = a, .b = b, .in_a = in_a, .in_b = in_b})) return true;
  if (pair.alignment.complete) return false;
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
  const ArgumentPair argument{.a = a, .b = b, .in_a = in_a, .in_b = in_b};
  if (!change.result && uses_other_parameter(runs, argument)) {
    finding.what = other_tensor_words(runs, argument);
  } else if (other_way) {
    finding.what = fmt::format("another iteration runs {} on another tensor", finding.op);
  } else {
    finding.what = fmt::format("{} has {} in another iteration", subject_of(runs, b, change, in_b), noun(change.kind));
  }
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

// Takes or makes as many tensors as there are: pieces of one (cat, split), unless it does the same to each of many.
bool joins_tensors(const trace::OpInfo& op) {
  const auto is_list = [](const c10::Argument& argument) {
    return argument.type()->isSubtypeOf(*c10::ListType::ofTensors()) ||
           argument.type()->isSubtypeOf(*c10::ListType::ofOptionalTensors());
  };
  const std::string& name = op.schema().name();
  if (name.starts_with("aten::_foreach_") || name.starts_with("aten::_fused_")) return false;
  const auto& arguments = op.schema().arguments();
  const auto& results = op.schema().returns();
  return std::any_of(arguments.begin(), arguments.end(), is_list) ||
         std::any_of(results.begin(), results.end(), is_list);
}

Finding other_operation(const ObservedRuns& runs, const RunPair& pair) {
  const OpAt a{pair.a, pair.alignment.ops};
  const OpAt b{pair.b, pair.alignment.ops};
  const bool same_operator = runs.op(a).info == runs.op(b).info && runs.op(a).backward == runs.op(b).backward;
  Finding finding = runs.finding(same_operator && joins_tensors(*runs.op(a).info) ? "PG502" : "PG501", a);
  finding.iteration = static_cast<int>(pair.b) + 1;
  if (same_operator) {
    finding.what = fmt::format("{} takes or makes another number of tensors in another iteration", finding.op);
    finding.evidence = fmt::format("{} and {} in {}, {} and {} in {}", runs.op(a).inputs, runs.op(a).outputs,
                                   iteration(pair.a), runs.op(b).inputs, runs.op(b).outputs, iteration(pair.b));
    return finding;
  }
  const std::string name = runs.op_name(b);
  const bool is_inside = name == finding.op;  // the same composite, which chose another one
  finding.what =
      fmt::format("another iteration runs {} instead of {}", is_inside ? runs.op(b).info->schema().name() : name,
                  is_inside ? runs.op(a).info->schema().name() : finding.op);
  finding.evidence = fmt::format("operation {}: {} in {}, {} in {}", pair.alignment.ops + 1, operation_at(runs, a),
                                 iteration(pair.a), operation_at(runs, b), iteration(pair.b));
  return finding;
}

// What differs first is part of a backward pass, or takes as many tensors as there are gradients.
bool follows_from_switch(const ObservedRuns& runs, const RunPair& pair) {
  const Alignment& alignment = pair.alignment;
  const std::size_t op = alignment.first_change ? alignment.first_change->op : alignment.ops;
  const auto has = [&](std::size_t run) { return op < runs.run(run).notes.size(); };
  if (has(pair.a) && runs.op({pair.a, op}).backward) return true;
  if (has(pair.b) && runs.op({pair.b, op}).backward) return true;
  return has(pair.a) && has(pair.b) && !alignment.first_change &&
         runs.op({pair.a, op}).info == runs.op({pair.b, op}).info;
}

}  // namespace

Findings check_control_flow(const ObservedRuns& runs) {
  Findings findings;
  for (const RunPair& pair : runs.pairs()) {
    Findings switched = switched_leaves(runs, pair);
    const bool is_explained = !switched.empty() && follows_from_switch(runs, pair);
    std::move(switched.begin(), switched.end(), std::back_inserter(findings));
    if (is_explained) continue;
    if (pair.alignment.first_change) {
      if (!follows_from_values(runs, pair)) findings.push_back(changed_tensor(runs, pair));
      continue;
    }
    if (pair.alignment.complete || stops_at_accumulation(runs, pair)) continue;
    const bool one_ended =
        pair.alignment.ops == runs.run(pair.a).notes.size() || pair.alignment.ops == runs.run(pair.b).notes.size();
    findings.push_back(one_ended ? longer_run(runs, pair) : other_operation(runs, pair));
  }
  return findings;
}

}  // namespace pianola::auditing
