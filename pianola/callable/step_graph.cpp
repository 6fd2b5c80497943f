#include <pianola/callable/step_graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/copy_into.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace pianola::callable {
namespace {

[[noreturn]] void refuse(std::string what, std::string fix) {
  throw UsageError({.what = std::move(what), .fix = std::move(fix)});
}

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
      refuse(fmt::format("input {} is on {}, and the step on {}", i, inputs[i].device().str(), graph_.device().str()),
             "move it there first");
    }
    if (inputs[i].requires_grad()) {
      refuse(fmt::format("input {} requires grad; the step would leave its gradient in a copy", i),
             "take the gradient outside of the step, or let the step return it");
    }
  }
}

void StepGraph::capture(const Step& step, const std::vector<at::Tensor>& leaves, CaptureOptions options,
                        const std::function<void(const OperationLog&)>& accept) {
  options.inputs = inputs_;
  gradients_.emplace(leaves);
  std::optional<ObservedRun> run;
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
  results.clear();
  run.reset();  // which holds them, too
  outside_.emplace(std::move(outside));
}

void StepGraph::check(const CallWatch& watch) const {
  if (const auto input = watch.written_input()) {
    refuse(fmt::format("the step writes input {} in place; the caller's tensor would not change, since the graph works "
                       "on a copy",
                       *input),
           "let it work on input.clone(), and return the result");
  }
  for (const at::Tensor& leaf : watch.leaves()) {
    if (gradients_->covers(leaf)) continue;
    refuse(fmt::format("the step uses a {} parameter of shape [{}] that it did not use in the call before",
                       c10::toString(leaf.scalar_type()), fmt::join(leaf.sizes(), ", ")),
           "let each call use the same parameters");
  }
}

StepGraph::Result StepGraph::classify(const at::Tensor& result, const CallWatch& watch) const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (result.is_same(inputs_[i])) return {.source = Result::Source::input, .position = i};
  }
  const bool is_view_of_input = std::any_of(inputs_.begin(), inputs_.end(), [&](const at::Tensor& input) {
    return trace::storage_of(input) == trace::storage_of(result);
  });
  if (!is_view_of_input && !watch.made(result)) {
    return {.source = Result::Source::outside, .tensor = result.is_leaf() ? result : result.detach()};
  }
  const trace::QuietScope quiet;
  return {.source = Result::Source::graph, .tensor = result.detach()};
}

void StepGraph::keep_results(const std::vector<at::Tensor>& results, const CallWatch& watch) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto earlier =
        std::find_if(results.begin(), results.end(), [&](const at::Tensor& one) { return one.is_same(results[i]); });
    const auto position = static_cast<std::size_t>(earlier - results.begin());
    results_.push_back(position < i ? Result{.source = Result::Source::repeated, .position = position}
                                    : classify(results[i], watch));
  }
  has_static_results_ = output_ == OutputPolicy::alias &&
                        std::none_of(results_.begin(), results_.end(),
                                     [](const Result& result) { return result.source == Result::Source::input; });
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
  std::vector<at::Tensor> results;
  results.reserve(results_.size());
  for (const Result& result : results_) {
    switch (result.source) {
      case Result::Source::input:
        results.push_back(inputs[result.position]);
        break;
      case Result::Source::outside:
        results.push_back(result.tensor);
        break;
      case Result::Source::graph:
        results.push_back(output_ == OutputPolicy::clone ? result.tensor.clone() : result.tensor.detach());
        break;
      case Result::Source::repeated:
        results.push_back(results[result.position]);
        break;
    }
  }
  return results;
}

std::vector<BranchInfo> StepGraph::branches() const {
  const std::optional<BranchInfo> branches = graph_.info().branches;
  return branches ? std::vector{*branches} : std::vector<BranchInfo>();
}

}  // namespace pianola::callable
