#include <pianola/callable/step_graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/copy_into.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pianola::callable {
namespace {

[[noreturn]] void refuse(std::string what, std::string fix) {
  throw UsageError({.what = std::move(what), .fix = std::move(fix)});
}

at::Tensor copy_out(const at::Tensor& output) { return output.clone(); }
at::Tensor look_at(const at::Tensor& output) { return output.detach(); }

}  // namespace

StepGraph::StepGraph(c10::Device device, std::span<const at::Tensor> inputs, OutputPolicy output)
    : graph_(device), output_(output) {
  check_inputs(inputs);
  for (const at::Tensor& input : inputs) inputs_.push_back(graph::static_copy_of(input));
}

void StepGraph::check_inputs(std::span<const at::Tensor> inputs) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (const auto odd = trace::oddity_of_input(inputs[i]); odd != trace::Oddity::none) {
      throw UsageError(trace::refuse_input(odd, fmt::format("input {}", i), inputs[i]));
    }
    if (inputs[i].device() != graph_.device()) {
      refuse(
          fmt::format("input {} is on {}, but the step is on {}", i, inputs[i].device().str(), graph_.device().str()),
          "move it there first");
    }
    if (inputs[i].requires_grad()) {
      refuse(fmt::format("input {} requires grad; the step would leave its gradient in a copy", i),
             "take the gradient outside of the step, or let the step return it");
    }
  }
}

void StepGraph::capture(const Step& step, const std::vector<at::Tensor>& leaves, CaptureOptions options,
                        const std::function<void(const trace::OperationLog&)>& accept) {
  options.inputs = inputs_;
  gradients_.emplace(leaves);
  std::optional<EagerRun> run;
  std::vector<at::Tensor> results;
  try {
    const auto observed = [&] {
      gradients_->begin_run();
      const trace::OpStream changes({&*gradients_});
      run.emplace(inputs_, [&] { results = step(inputs_); });
    };
    graph_.capture(observed, options);
    if (!run->failure().empty()) throw UsageError({.what = run->failure()});
    check(run->watch());
    if (accept) accept(run->log());
  } catch (...) {
    gradients_->put_back();
    throw;
  }
  gradients_->finish();
  keep_results(results, run->watch());
  std::vector<at::Tensor> outside = run->watch().outside();
  std::erase_if(outside, [&](const at::Tensor& tensor) { return gradients_->had(tensor); });
  graph::RecurrentDropout dropout = run->watch().dropout();
  const graph::HostTensors host_tensors = run->watch().host_tensors();
  results.clear();
  run.reset();  // which holds them, too
  outside_.emplace(std::move(outside)).watch_dropout(std::move(dropout));
  if (!graph_.device().is_cpu()) outside_->watch_values(host_tensors);
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
  has_static_results_ = output_ == OutputPolicy::alias && !origins_.use_inputs();
}

std::vector<at::Tensor> StepGraph::replay(std::span<const at::Tensor> inputs) {
  launch(inputs);
  return results(inputs);
}

void StepGraph::launch(std::span<const at::Tensor> inputs) {
  try {
    graph_.replay(inputs);
  } catch (...) {
    gradients_->leave_as_at(graph_.failed_operation());
    throw;
  }
  gradients_->leave_as_captured();
}

std::vector<at::Tensor> StepGraph::results(std::span<const at::Tensor> inputs) const {
  const trace::QuietScope quiet;
  const std::vector<at::Tensor> outputs =
      origins_.give_out({.inputs = inputs,
                         .outputs = outputs_,
                         .regions = regions_,
                         .fresh = output_ == OutputPolicy::clone ? &copy_out : &look_at});
  if (output_of_leaf_.size() == outputs.size()) return outputs;
  std::vector<at::Tensor> results;
  results.reserve(output_of_leaf_.size());
  for (const std::size_t output : output_of_leaf_) results.push_back(outputs[output]);
  return results;
}

std::vector<BranchInfo> StepGraph::branches() const {
  const std::optional<BranchInfo> branches = graph_.info().branches;
  return branches ? std::vector{*branches} : std::vector<BranchInfo>();
}

}  // namespace pianola::callable
