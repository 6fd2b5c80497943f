#include <pianola/callable/step_graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/copy_into.hpp>
#include <pianola/graph/graph_numbers.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/read_check.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace pianola::callable {
namespace {

[[noreturn]] void refuse(std::string what, std::string fix) {
  throw UsageError({.what = std::move(what), .fix = std::move(fix)});
}

// Hears whether the step communicates with other ranks.
class Communications final : public trace::OpObserver {
 public:
  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override { any_ = any_ || op.info->collective; }
  [[nodiscard]] bool any() const noexcept { return any_; }

 private:
  bool any_ = false;
};

// Without the rule behind it.
std::string first_line_of(std::string_view error) {
  error = error.substr(0, error.find('\n'));
  return std::string(error.substr(0, error.rfind(" [PG")));
}

// Of the exception that is being handled.
[[noreturn]] void refuse_out_of_step() {
  std::string why = "it threw what is not a std::exception";
  try {
    throw;
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
  }
  std::throw_with_nested(OutOfStep(
      {.what = "the capture failed after the step had communicated with other ranks, which the tape's captures "
               "do: " +
               first_line_of(why),
       .fix = "mend the cause, or leave the step eager on all ranks",
       .rule = "PG1106"}));
}

}  // namespace

StepGraph::StepGraph(c10::Device device, std::span<const at::Tensor> inputs, const std::vector<bool>& spared,
                     OutputPolicy output, LeafSet own_gradients, InputBuffers* buffers)
    : graph_(device), output_(output), own_gradients_(std::move(own_gradients)), shares_inputs_(buffers != nullptr) {
  check_inputs(inputs, spared);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs_.push_back(buffers != nullptr ? buffers->static_copy_of(i, inputs[i]) : graph::static_copy_of(inputs[i]));
  }
}

void StepGraph::check_inputs(std::span<const at::Tensor> inputs, const std::vector<bool>& spared) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (const auto odd = trace::oddity_of_input(inputs[i]); odd != trace::Oddity::none) {
      throw UsageError(trace::refuse_input(odd, fmt::format("input {}", i), inputs[i]));
    }
    if (inputs[i].device() != graph_.device()) {
      refuse(
          fmt::format("input {} is on {}, but the step is on {}", i, inputs[i].device().str(), graph_.device().str()),
          "move it there first");
    }
    if (inputs[i].requires_grad() && (i >= spared.size() || !spared[i])) {
      refuse(fmt::format("input {} requires grad; the step would leave its gradient in a copy", i),
             "take the gradient outside of the step, or let the step return it");
    }
  }
}

void StepGraph::capture(const Step& step, const std::vector<at::Tensor>& leaves, const RunBefore& before,
                        CaptureOptions options, const std::function<void(const EagerRun&)>& accept) {
  options.inputs = inputs_;
  const bool any_found = std::any_of(before.islands.begin(), before.islands.end(),
                                     [](const graph::IslandNotes& one) { return one.is_found; });
  if (any_found && before.checked == nullptr) {
    refuse("what was found to read values that change would have to be taken back", "mark it with pianola.eager");
  }
  MadeMemory::Capture counted;
  gradients_.emplace(leaves, own_gradients_, /*may_be_taken_back=*/before.checked != nullptr);
  std::optional<EagerRun> run;
  std::vector<at::Tensor> results;
  auto parts = std::make_shared<HostParts>(before.reads);
  auto numbers = std::make_shared<graph::NumberUses>();
  std::shared_ptr<CheckedReads> reads;
  Communications communications;
  try {
    const auto observed = [&] {
      gradients_->begin_run();
      parts->put_back();  // of a run before, which is none of the user's
      parts = std::make_shared<HostParts>(before.reads);
      numbers = std::make_shared<graph::NumberUses>();
      if (before.checked != nullptr) reads = std::make_shared<CheckedReads>(graph_.device(), *before.checked);
      const trace::OpStream changes({&*gradients_, &communications});
      run.emplace(
          inputs_, [&] { results = step(inputs_); }, parts, numbers,
          std::make_shared<graph::Islands>(before.islands, leaves), reads);
      gradients_->end_run();
    };
    const graph::ObservedBefore known(leaves);
    const graph::GraphNumbers wanted(graph_);
    wanted.keep([&](std::size_t /*operation*/) { return parts->is_in_active() || numbers->is_at_one(); });
    try {
      graph_.capture(observed, options);
    } catch (...) {
      wanted.keep({});  // where it had not begun
      throw;
    }
    run->check();
    if (reads != nullptr && reads->any()) {
      if (graph::GraphNumbers(graph_).runs_unknown_kernels()) {
        throw UncheckedReads({.what = "it runs kernels that no operator launches, and nobody knows what they write"});
      }
      undo_.emplace(*reads, graph_.device(), options.generators);
    }
    check(run->watch());
    if (gradients_->any_is_sparse()) {
      refuse("the step makes or uses a sparse gradient, which a replay would not renew",
             "leave the step eager, or use a dense gradient: sparse=False");
    }
    gradients_->note_handed_out(results);
    for (const auto& used : {run->watch().outside(), results, inputs_}) gradients_->note_memory_beside(used);
    if (!gradients_->may_be_own(run->parts().parameters_of_users_code())) {
      throw NoOwnGradients({.what = "gradients that are set from outside share memory with what else the step uses"});
    }
    if (shares_inputs_ && hold_gradients(inputs_, leaves)) {
      throw HeldInput({.what = "the step leaves a gradient in the memory of an input"});
    }
    recorded_ = &*run;
    recorded_results_ = results;
    if (accept) accept(*run);
    recorded_ = nullptr;
    if (auto obstacle = parts->obstacle()) throw UsageError(*std::move(obstacle));
    if (parts->must_be_active()) {
      for (const auto& activate : parts->passive()) activate();
      refuse("the optimizer counts its steps on the host, or keeps what it computes, in some of its calls only",
             "let each call do the same");
    }
  } catch (...) {
    parts->put_back();
    gradients_->put_back();
    if (communications.any() && graph_.device().is_cpu()) refuse_out_of_step();
    throw;
  }
  communicates_ = communications.any();
  parts_ = parts->take();
  parts_have_run_ = true;
  reads_ = std::any_of(parts_.begin(), parts_.end(), [](const HostPart& part) { return part.reads(); });
  if (!may_be_taken_back()) keep_parts();
  gradients_->finish(/*all_seen=*/!before.trains || !graph::GraphNumbers(graph_).runs_unknown_kernels());
  keep_results(results, run->watch());
  std::vector<at::Tensor> outside = run->watch().outside();
  std::erase_if(outside, [&](const at::Tensor& tensor) { return gradients_->had(tensor); });
  graph::RecurrentDropout dropout = run->watch().dropout();
  const graph::HostTensors host_tensors = run->watch().host_tensors();
  results.clear();
  run.reset();  // which holds them, too
  outside_.emplace(std::move(outside)).watch_dropout(std::move(dropout));
  if (!graph_.device().is_cpu()) outside_->watch_values(host_tensors);
  references_ = counted.finish();
  gradients_->count_references();
}

void StepGraph::keep_parts() {
  for (HostPart& part : parts_) part.keep();
}

void StepGraph::bind_numbers(std::span<const graph::NumberSample> samples,
                             const std::function<std::vector<graph::NumberSlot>(graph::NumberEvidence)>& bind) {
  const graph::GraphNumbers graph(graph_);
  numbers_ = graph::NumberSlots(
      recorded_->numbers(),
      bind(graph::NumberSlots::evidence(recorded_->numbers(), recorded_->log(), samples, graph, recorded_results_)));
  has_its_numbers_ = true;
}

bool StepGraph::set_numbers(std::span<const c10::IValue> values) {
  if (std::exchange(has_its_numbers_, false) || numbers_.empty()) return true;
  return numbers_.set(values, graph::GraphNumbers(graph_));
}

void StepGraph::check(const CallWatch& watch) const {
  if (const auto input = watch.written_input()) {
    refuse(fmt::format("the step writes input {} in place; the caller's tensor would not change, because the graph "
                       "works on a copy",
                       *input),
           "let it work on input.clone(), and return the result");
  }
  if (!graph_.device().is_cpu()) {
    if (auto obstacle = watch.host_tensors().obstacle()) throw UsageError(*std::move(obstacle));
  }
  for (const at::Tensor& leaf : watch.leaves()) {
    if (gradients_->covers(leaf)) continue;
    refuse(fmt::format("the step uses {} that it did not use in the call before", trace::describe_parameter(leaf)),
           "let each call use the same parameters");
  }
}

void StepGraph::keep_results(const std::vector<at::Tensor>& results, const CallWatch& watch) {
  std::vector<at::Tensor> unique;
  for (const at::Tensor& result : results) {
    const auto known =
        std::find_if(unique.begin(), unique.end(), [&](const at::Tensor& one) { return one.is_same(result); });
    output_of_leaf_.push_back(static_cast<std::size_t>(known - unique.begin()));
    if (known == unique.end()) unique.push_back(result);
  }
  origins_.find(unique, inputs_, [&](const at::Tensor& result) {
    if (watch.made(result)) return Before::no;
    return result.is_leaf() ? Before::itself : Before::memory;
  });
  const trace::QuietScope quiet;
  for (const at::Tensor& result : unique) outputs_.push_back(result.detach());
  regions_ = origins_.regions_of(outputs_);
  copied_ = origins_.own_memory(outputs_, regions_);
  has_static_results_ = output_ == OutputPolicy::alias && !origins_.use_inputs();
}

std::vector<at::Tensor> StepGraph::replay(std::span<const at::Tensor> inputs) {
  ResultCopies copies = copies_of_results();
  launch(inputs);
  return results(inputs, copies);
}

ResultCopies StepGraph::copies_of_results() const {
  return output_ == OutputPolicy::clone ? ResultCopies(copied_) : ResultCopies();
}

std::string StepGraph::why_stale() const {
  if (!graph_.captured()) return "its process group was destroyed";
  if (diverged_.empty()) return outside_->difference();
  return fmt::format("the optimizer did something else than when it was captured: {}", diverged_);
}

void StepGraph::launch(std::span<const at::Tensor> inputs) {
  if (gradients_->are_among(inputs)) {
    throw GuardError(
        {.what = "an input is a gradient that the step uses too; a replay would read it as it was before the call",
         .fix = "pass a clone() of it"});
  }
  if (undo_) gradients_->note_found();
  gradients_->copy_in();
  if (undo_) undo_->save();
  const bool have_run = std::exchange(parts_have_run_, false);
  try {
    const bool is_recorded_call = std::exchange(communicates_, false);
    const graph::GraphNumbers graph(graph_);
    if (is_recorded_call) graph.repeat_recorded_call(true);
    launch_once(inputs, have_run);
    if (is_recorded_call) graph.repeat_recorded_call(false);
    gradients_->forget_found();
  } catch (const graph::OtherValue&) {
    take_back(have_run);
    throw;
  } catch (...) {
    graph::GraphNumbers(graph_).repeat_recorded_call(false);
    for (HostPart& part : parts_) part.hand_out();
    gradients_->forget_found();
    gradients_->copy_out();
    gradients_->leave_as_at(graph_.failed_operation());
    throw;
  }
  for (HostPart& part : parts_) part.hand_out();
  gradients_->copy_out();
  gradients_->leave_as_captured();
}

void StepGraph::launch_once(std::span<const at::Tensor> inputs, bool have_run) {
  if (parts_.empty() || (have_run && !reads_)) {
    graph_.replay(inputs);
  } else {
    launch_with_parts(inputs, have_run);
  }
  if (have_run && may_be_taken_back()) keep_parts();
}

// A check of a read has ended the launch. No part comes before the last check (CheckedReads::obstacle), so that none has run, but
// in the capture.
void StepGraph::take_back(bool have_run) {
  undo_->put_back();
  if (have_run && !parts_.empty()) {
    take_back_from(parts_.front());
    keep_parts();
  }
  gradients_->give_back_found();
}

// The numbers first, then the graph: what parts want to read is run before. `have_run`: all of them, in the capture.
void StepGraph::launch_with_parts(std::span<const at::Tensor> inputs, bool have_run) {
  const graph::GraphNumbers numbers(graph_);
  numbers.check_replayable();
  const std::shared_ptr<PoolState> pool = graph_.pool().state();
  const PoolState::InUse in_use(*pool);  // before any part has run
  gradients_->leave_as_captured();
  std::size_t done = 0;  // operations that have run, or are left out
  bool is_whole = true;
  std::optional<PoolState::InPieces> in_pieces;
  if (reads_) in_pieces.emplace(*pool);  // before any part has run
  const auto reach = [&](std::size_t operation) {
    if (operation <= done) return;
    if (std::exchange(is_whole, false)) {
      if (!in_pieces) in_pieces.emplace(*pool);
      numbers.copy_inputs(inputs);
    }
    numbers.replay(done + 1, operation);
    done = operation;
  };
  HostPart* running = nullptr;
  const auto leave_out_rest = [&](std::size_t operation) {
    reach(operation - 1);
    done = running->last_operation();
  };
  const HostPartListener listener{
      .can_set = [&](std::size_t operation, std::size_t argument) { return numbers.has(operation, argument); },
      .number = [&](const HostNumber& number) { numbers.set(number.operation, number.argument, number.value); },
      .read = reach,
      .left_out = leave_out_rest,
      .diverged =
          [&](std::size_t operation, std::string what) {
            if (diverged_.empty()) diverged_ = std::move(what);
            leave_out_rest(operation);
          }};
  for (auto part = parts_.begin(); part != parts_.end(); ++part) {
    running = &*part;
    reach(numbers.last_called(part->first_operation() - 1));  // what comes behind one that throws is not done
    if (have_run && part->reads_as_captured(reach)) continue;
    if (std::exchange(have_run, false)) take_back_from(*part);
    part->rerun(listener);
  }
  if (is_whole) {
    graph_.replay(inputs);
  } else {
    numbers.replay(done + 1, std::numeric_limits<std::size_t>::max() - 1);
  }
}

// What the parts did on the host in the capture, from this one on.
void StepGraph::take_back_from(const HostPart& first) const {
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
    part->take_back();
    if (&*part == &first) return part->take_tensors_back();
  }
}

std::vector<at::Tensor> StepGraph::results(std::span<const at::Tensor> inputs, ResultCopies& copies) const {
  const trace::QuietScope quiet;
  const auto fresh = [&](const at::Tensor& output) {
    return output_ == OutputPolicy::clone ? copies.copy(output) : output.detach();
  };
  const std::vector<at::Tensor> outputs =
      origins_.give_out({.inputs = inputs, .outputs = outputs_, .regions = regions_, .fresh = fresh});
  if (output_of_leaf_.size() == outputs.size()) return outputs;
  std::vector<at::Tensor> results;
  results.reserve(output_of_leaf_.size());
  for (const std::size_t output : output_of_leaf_) results.push_back(outputs[output]);
  return results;
}

std::vector<BranchInfo> StepGraph::branches() const {
  if (!graph_.captured()) return {};  // its process group took it along
  const std::optional<BranchInfo> branches = graph_.info().branches;
  return branches ? std::vector{*branches} : std::vector<BranchInfo>();
}

}  // namespace pianola::callable
