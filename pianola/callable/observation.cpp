#include <pianola/callable/observation.hpp>

#include <pianola/callable/call_signature.hpp>
#include <pianola/core/error.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/trace/parts.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <c10/util/flat_hash_map.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace pianola::callable {
namespace {

bool keeps_more_than(const EagerRun& run, const std::vector<at::Tensor>& results) {
  const std::vector<CallWatch::Made> held = run.watch().made_and_held();
  return std::any_of(held.begin(), held.end(), [&](const CallWatch::Made& one) {
    return std::none_of(results.begin(), results.end(), [&](const at::Tensor& result) {
      return trace::storage_of(result) == one.storage._unsafe_get_target();
    });
  });
}

// Also by no backward pass that accumulates: `p.grad = torch.autograd.grad(loss, p)`. A call whose code names no gradients, and that leaves
// nothing but its results, left none. Nobody looks at them then: another thread may train the parameters meanwhile.
bool leaves_gradients(const EagerRun& run, const HostEffects& effects, const std::vector<at::Tensor>& results) {
  if (!effects.names_gradients && !keeps_more_than(run, results)) return false;
  const std::vector<at::Tensor> leaves = run.watch().leaves();
  return std::any_of(leaves.begin(), leaves.end(), [&](const at::Tensor& leaf) {
    bool made = false;
    trace::for_each_part(leaf.grad(), [&](const at::Tensor& part) { made = made || run.watch().made(part); });
    return made;
  });
}

// Replays of steps alone run parts of the host again, and leave gradients.
GraphedKind kind_of(const EagerRun& run, const HostEffects& effects, const std::vector<at::Tensor>& results) {
  if (run.watch().trains() || results.empty() || leaves_gradients(run, effects, results)) return GraphedKind::step;
  const bool differentiable =
      std::any_of(results.begin(), results.end(), [](const at::Tensor& result) { return result.requires_grad(); });
  if (differentiable) return GraphedKind::autograd;
  return run.parts().any_active() ? GraphedKind::step : GraphedKind::inference;
}

std::optional<Diagnosis> part_outside_of_step(const EagerRun& run, GraphedKind kind) {
  if (kind == GraphedKind::step || !run.parts().any_active()) return std::nullopt;
  return Diagnosis{.what =
                       "a method that the function calls counts on the host, and the backward pass runs outside of the "
                       "function; a replay would not count",
                   .fix = "call it outside, after the function, or let the function run the backward pass",
                   .rule = "PG803"};
}

// That of its inputs and of the tensors that it reads; those on the CPU do not count where there is another.
c10::Device device_of(const CallWatch& watch, std::span<const at::Tensor> inputs) {
  for (const at::Tensor& tensor : inputs) {
    if (!tensor.device().is_cpu()) return tensor.device();
  }
  for (const at::Tensor& tensor : watch.outside()) {
    if (!tensor.device().is_cpu()) return tensor.device();
  }
  return c10::Device(c10::kCPU);
}

std::optional<Diagnosis> input_elsewhere(std::span<const at::Tensor> inputs, c10::Device device) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].device() == device) continue;
    return Diagnosis{
        .what = fmt::format("input {} is on {}, but the function computes on {}", i, inputs[i].device().str(),
                            device.str()),
        .fix = "move it there before the call, or do nothing else with it in the function than to move it there",
        .rule = "PG204"};
  }
  return std::nullopt;
}

std::optional<Diagnosis> odd_result(const std::vector<at::Tensor>& results) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined()) continue;
    if (const auto odd = trace::oddity_in_step(results[i]); odd == trace::Oddity::subclass)
      return trace::refuse_input(odd, fmt::format("result {}", i), results[i]);
  }
  return std::nullopt;
}

std::string text_of(const std::optional<Diagnosis>& diagnosis) {
  return diagnosis ? UsageError(*diagnosis).what() : std::string();
}

// @param gradients  Whether to tell of a gradient that another call made, or of anything else.
std::optional<Diagnosis> dropped_tensor(const EagerRun& run, bool gradients) {
  const std::optional<CallWatch::Use> dropped = run.watch().dropped(run.parts().gradients_found());
  if (!dropped || dropped->is_gradient != gradients) return std::nullopt;
  const at::Tensor& tensor = dropped->tensor;
  const std::string place = run.log().site_of(dropped->operation).describe();
  return Diagnosis{.what = fmt::format("the function reads {} that is gone after the call (replaced, or made "
                                       "from memory of the host); a graph would read the same one for ever",
                                       trace::describe(tensor)),
                   .where = fmt::format("operation {} of the step, {}{}{}", dropped->position, dropped->info->name,
                                        place.empty() ? "" : ", ", place),
                   .fix = "pass it as an input, or keep one tensor and write into it (copy_())",
                   .rule = "PG401"};
}

std::optional<Diagnosis> written_input(const CallWatch& watch, GraphedKind kind) {
  const auto input = watch.written_input();
  if (!input) return std::nullopt;
  return Diagnosis{
      .what = fmt::format(
          "the {} writes input {} in place; the caller's tensor would not change, because the graph works on a copy",
          kind == GraphedKind::step ? "step" : "function", *input),
      .fix = "let it work on input.clone(), and return the result",
      .rule = "PG902"};
}

// They see what a forward pass saves, which in a replay is nothing. And where torch.utils.checkpoint runs a call anew, in the
// backward pass, it counts what is saved.
std::optional<Diagnosis> hooks_on_saved_tensors(GraphedKind kind) {
  if (kind != GraphedKind::autograd || !has_hooks_on_saved_tensors()) return std::nullopt;
  return Diagnosis{
      .what =
          "it is called under hooks on saved tensors, as checkpoint(use_reentrant=False) and save_on_cpu set "
          "them, which would see nothing of a replay",
      .fix =
          "graph a function that calls checkpoint(), so that the recomputation is part of its graph, or "
          "checkpoint with use_reentrant=True"};
}

// A function whose gradients come later is a part of a step.
std::optional<Diagnosis> odd_work_of(const EagerRun& run, GraphedKind kind) {
  if (run.odd_work()) return run.odd_work()->diagnosis();
  if (run.communication() && kind == GraphedKind::autograd) return run.communication()->diagnosis();
  return std::nullopt;
}

// Results that were there before; undefined in place of others.
std::vector<at::Tensor> not_made(const EagerRun& run, std::vector<at::Tensor> results) {
  for (at::Tensor& result : results) {
    if (result.defined() && run.watch().made(result)) result.reset();
  }
  return results;
}

// The first of them that there is.
std::string first_of(std::initializer_list<std::string> texts) {
  const auto found = std::find_if(texts.begin(), texts.end(), [](const std::string& text) { return !text.empty(); });
  return found == texts.end() ? std::string() : *found;
}

// What the host drew itself, where later calls of the function will do it as well.
std::optional<Diagnosis> draws_of_host(const EagerRun& run, const HostEffects& effects, c10::Device device) {
  if (effects.is_no_example || effects.begins_anew) return std::nullopt;
  return run.host().draws(device);
}

// A first call may make more of them than later ones: an optimizer's state begins as zeros of the CPU.
std::optional<Diagnosis> tensors_of_host(const EagerRun& run, const HostEffects& effects, c10::Device device) {
  if (effects.is_no_example || effects.begins_anew || device.is_cpu()) return std::nullopt;
  return run.watch().host_tensors().obstacle();
}

}  // namespace

Observation::Observation(EagerRun run, const HostEffects& effects, std::span<const at::Tensor> inputs,
                         const std::vector<at::Tensor>& results, const GradientsBefore& gradients)
    : kind_(kind_of(run, effects, results)),
      computes_only_(kind_ == GraphedKind::inference && !effects.names_gradients),
      device_(device_of(run.watch(), inputs)),
      memory_(run.memory(device_)),
      is_told_(effects.stored_gradients.has_value()),
      gradients_(kind_ == GraphedKind::step
                     ? GradientChanges()
                     : GradientChanges(gradients, effects, inputs, run.watch().leaves(), not_made(run, results))),
      spared_inputs_(run.spared_inputs()),
      kept_(run, inputs, results, effects.remade, /*may_leave_gradients=*/!computes_only_),
      inputs_to_let_go_(kept_.inputs().positions()),
      backwards_(kind_ == GraphedKind::autograd ? CustomBackwards(inputs, results) : CustomBackwards()),
      backward_(kind_ == GraphedKind::autograd ? ObservedBackward(inputs, results, run.first_node())
                                               : ObservedBackward()),
      lasting_(first_of({run.failure(), text_of(hooks_on_saved_tensors(kind_)), text_of(odd_work_of(run, kind_)),
                         text_of(odd_result(results)), effects.lasting, text_of(input_elsewhere(inputs, device_)),
                         text_of(draws_of_host(run, effects, device_))})),
      passing_(first_of({text_of(run.host().reads(device_, !effects.only_returns_late_reads)),
                         text_of(written_input(run.watch(), kind_)), effects.passing,
                         text_of(tensors_of_host(run, effects, device_)),
                         text_of(dropped_tensor(run, /*gradients=*/false)), text_of(run.parts().obstacle()),
                         text_of(part_outside_of_step(run, kind_)), text_of(gradients_.obstacle())})),
      awaited_(text_of(dropped_tensor(run, /*gradients=*/true))),
      dropout_(run.watch().dropout()),
      passive_parts_(run.parts().passive()),
      parts_must_be_active_(run.parts().must_be_active()),
      values_read_(run.parts().values_read()),
      islands_(run.islands().notes()),
      checked_values_(run.values_read()),
      reads_values_(!checked_values_.empty() || has_found_parts() ||
                    run.host().reads(device_, /*late_ones_count=*/true).has_value()),
      runs_compiled_(effects.runs_compiled),
      compiled_(run.odd_work() && run.odd_work()->oddity == trace::Oddity::compiling),
      waited_for_a_rank_(run.odd_work() && run.odd_work()->oddity == trace::Oddity::late_rank),
      is_unlike_captures_(effects.is_no_example || run.parts().read_overflow()),
      copies_from_host_(run.host().copies_from_host()),
      communicates_(run.communication().has_value()),
      shows_gradients_(!run.parts().parameters_of_users_code().empty()),
      is_data_parallel_(communicates_ && run.communication()->oddity == trace::Oddity::data_parallel),
      inputs_elsewhere_(input_elsewhere(inputs, device_).has_value()),
      begins_anew_(effects.begins_anew),
      log_(std::move(run.log())) {
  for (const graph::IslandNotes& island : islands_) {
    if (lasting_.empty()) lasting_ = island.unfit;
  }
  for (const auto& [tensor, place] : effects.given) {
    given_.push_back({.tensor = trace::WeakTensor(tensor.getIntrusivePtr()), .place = place});
  }
  for (const GivenTensors::One& one : run.given().all()) {
    if (!one.tensor.expired()) given_.push_back({.tensor = one.tensor});
  }
  std::set<const c10::TensorImpl*> known;
  const auto add = [&](const at::Tensor& leaf) {
    if (known.insert(leaf.unsafeGetTensorImpl()).second) leaves_.emplace_back(leaf.getIntrusivePtr());
  };
  for (const at::Tensor& leaf : run.watch().leaves()) add(leaf);
  for (const graph::IslandNotes& island : islands_) {  // what a part alone reads, the step's operations do not show
    for (const trace::WeakTensor& parameter : island.parameters) {
      if (const auto leaf = parameter.lock()) add(at::Tensor(leaf));
    }
  }
  // Those that got no gradient may get one: then an optimizer does something else.
  for (const at::Tensor& parameter : run.parts().parameters()) {
    if (parameter.is_leaf() && parameter.device() == device_) add(parameter);
  }
  const auto add_more = [&](const std::vector<trace::WeakTensor>& leaves) {
    for (const trace::WeakTensor& leaf : leaves) {
      told_leaves_.push_back(leaf);
      if (known.insert(leaf._unsafe_get_target()).second) more_leaves_.push_back(leaf);
    }
  };
  add_more(effects.cleared_gradients);
  if (effects.stored_gradients) add_more(*effects.stored_gradients);
}

namespace {

void add_living(std::vector<at::Tensor>& to, const std::vector<trace::WeakTensor>& leaves) {
  for (const trace::WeakTensor& weak : leaves) {
    if (auto leaf = weak.lock()) to.emplace_back(std::move(leaf));
  }
}

}  // namespace

std::vector<at::Tensor> Observation::leaves() const {
  std::vector<at::Tensor> result;
  add_living(result, leaves_);
  return result;
}

std::vector<at::Tensor> Observation::leaves_of_gradients() const {
  std::vector<at::Tensor> result = leaves();
  add_living(result, more_leaves_);
  return result;
}

std::vector<at::Tensor> Observation::leaves_to_compare() const {
  std::vector<at::Tensor> result;
  if (is_told_ || kind_ == GraphedKind::autograd) add_living(result, is_told_ ? told_leaves_ : leaves_);
  return result;
}

void Observation::note_varying_parts(const Observation& before) const {
  if (passive_parts_.empty()) return;
  if (!parts_must_be_active_ && !trace::OperationLog::numbers_of_host_differ(before.log_, log_)) return;
  for (const auto& part : passive_parts_) part();
}

std::string Observation::difference_from(const Observation& before, bool numbers_count) const {
  return text_of(trace::OperationLog::difference(before.log_, log_, numbers_count));
}

namespace {

void refuse(std::optional<Diagnosis> difference, bool any_path) {
  if (!difference || (any_path && difference->rule != "PG301")) return;
  throw OtherPath(*std::move(difference));
}

}  // namespace

std::string Observation::difference_to_capture(const trace::OperationLog& capture) const {
  return text_of(trace::OperationLog::difference_of_capture(log_, capture));
}

void Observation::check_capture(const trace::OperationLog& capture, bool any_path, bool numbers_count) const {
  refuse(trace::OperationLog::difference_of_capture(log_, capture, numbers_count), any_path);
}

void Observation::check_given_memory(const EagerRun& recorded, std::span<const at::Tensor> static_inputs) const {
  ska::flat_hash_set<const c10::StorageImpl*> made;
  for (const CallWatch::Made& one : recorded.watch().made_and_held()) {
    const c10::StorageImpl* const memory = one.storage._unsafe_get_target();
    if (!recorded.parts().made(memory)) made.insert(memory);
  }
  if (!computes_only_) {
    for (const at::Tensor& leaf : recorded.watch().leaves()) {
      trace::for_each_part(leaf.grad(), [&](const at::Tensor& part) { made.erase(trace::storage_of(part)); });
    }
  }
  const RunWithMemory run{.inputs = static_inputs,
                          .made = [&](const c10::StorageImpl* memory) { return made.count(memory) != 0; },
                          .given = recorded.given(),
                          .log = recorded.log()};
  if (auto offence = refuse_given_memory(given_, run)) throw UsageError(*std::move(offence));
}

void Observation::check_captured_backwards(const CustomBackwards& capture, bool any_path) const {
  refuse(capture.difference_from(backwards_), any_path);
}

}  // namespace pianola::callable
