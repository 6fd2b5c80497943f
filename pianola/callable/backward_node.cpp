#include <pianola/callable/backward_node.hpp>

#include <pianola/callable/backward_errors.hpp>
#include <pianola/callable/captured_callable.hpp>
#include <pianola/core/error.hpp>

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace pianola::callable {

namespace autograd = torch::autograd;

BackwardNode::BackwardNode(std::shared_ptr<CapturedCallable> callable, CapturedMode& mode, Pass& pass,
                           std::uint64_t call, int microbatch)
    : callable_(std::move(callable)), mode_(mode), pass_(pass), call_(call), microbatch_(microbatch) {
  pass_.holder = call_;
}

BackwardNode::~BackwardNode() { let_go(); }

void BackwardNode::let_go() noexcept {
  if (callable_ == nullptr) return;
  release_variables();
  callable_.reset();
}

void BackwardNode::release_variables() {
  std::uint64_t mine = call_;
  pass_.holder.compare_exchange_strong(mine, 0);  // unless a later call holds it by now
  released_ = true;
}

// Past add_next_edge(), which wants no parents yet: a leaf's accumulator is below any node as it is.
void BackwardNode::expose(std::size_t parameter, autograd::Edge edge) {
  if (std::find(exposed_.begin(), exposed_.end(), parameter) != exposed_.end()) return;
  exposed_.push_back(parameter);
  next_edges_.push_back(std::move(edge));
}

autograd::variable_list BackwardNode::apply(autograd::variable_list&& gradients) {
  try {
    return run(gradients);
  } catch (const Error&) {
    throw_from_backward(std::current_exception());
  }
}

void BackwardNode::check_may_run() const {
  if (at::GradMode::is_enabled()) {
    throw UsageError({.what = "gradients of gradients cannot go through a graphed callable: backward() was called with "
                              "create_graph=true; nothing was launched",
                      .where = callable_->name(),
                      .fix = "call backward() without create_graph, or run this callable eagerly",
                      .rule = "PG1007"});
  }
  if (released_ || (ran_ && !callable_->retains_graph())) {
    throw UsageError({.what = "backward() was called a second time through one call of a graphed callable, whose "
                              "activations are gone; nothing was launched",
                      .where = callable_->name(),
                      .fix = "set CallableOptions::retain_graph when it is captured, and pass retain_graph=true to all "
                             "but the last backward()"});
  }
  if (pass_.holder != call_) {
    throw UsageError({.what = "backward() was called through a call of a graphed callable whose slot a later call has "
                              "taken: its activations are overwritten; nothing was launched",
                      .where = callable_->name(),
                      .fix =
                          "run it before the next call, or set CallableOptions::slots to the number of calls that are "
                          "between forward and backward at once",
                      .rule = "PG907"});
  }
}

autograd::variable_list BackwardNode::run(const autograd::variable_list& gradients) {
  check_may_run();
  autograd::variable_list result = callable_->backward(*this, gradients);
  ran_ = true;
  // A later forward may take the slot before the engine gets round to release_variables().
  if (!autograd::get_current_graph_task_keep_graph()) release_variables();
  return result;
}

}  // namespace pianola::callable
