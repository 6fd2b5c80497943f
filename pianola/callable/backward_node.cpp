#include <pianola/callable/backward_node.hpp>

#include <pianola/callable/captured_callable.hpp>
#include <pianola/core/error.hpp>

#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace pianola::callable {

namespace autograd = torch::autograd;

BackwardNode::BackwardNode(std::shared_ptr<CapturedCallable> callable, CapturedMode& mode, Pass& pass, int microbatch)
    : callable_(std::move(callable)), mode_(mode), pass_(pass), microbatch_(microbatch) {
  pass_.in_flight = true;
}

BackwardNode::~BackwardNode() { release_variables(); }

void BackwardNode::release_variables() {
  if (!released_) pass_.in_flight = false;
  released_ = true;
}

autograd::variable_list BackwardNode::apply(autograd::variable_list&& gradients) {
  if (at::GradMode::is_enabled()) {
    throw UsageError({.what = "gradients of gradients cannot go through a graphed callable: backward() was called with "
                              "create_graph=true; nothing was launched",
                      .where = callable_->name(),
                      .fix = "call backward() without create_graph, or run this callable eagerly"});
  }
  if (released_ || (ran_ && !callable_->retains_graph())) {
    throw UsageError({.what = "backward() was called a second time through one call of a graphed callable, whose "
                              "activations are gone; nothing was launched",
                      .where = callable_->name(),
                      .fix = "set CallableOptions::retain_graph when it is captured, and pass retain_graph=true to all "
                             "but the last backward()"});
  }
  autograd::variable_list result = callable_->backward(*this, gradients);
  ran_ = true;
  // A later forward may take the slot before the engine gets round to release_variables().
  if (!autograd::get_current_graph_task_keep_graph()) release_variables();
  return result;
}

}  // namespace pianola::callable
