#include <pianola/callable/graphed_callable.hpp>

#include <pianola/callable/branch_table.hpp>
#include <pianola/callable/captured_callable.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/moved_from.hpp>

#include <fmt/format.h>

#include <set>
#include <utility>

namespace pianola {

Report CallableInfo::report() const {
  Report report("Graphed callable");
  report.fact("graphs", "graphs", static_cast<std::int64_t>(graphs))
      .fact("slots", "slots", static_cast<std::int64_t>(slots))
      .fact("parameters", "parameters, gradient in the graph", static_cast<std::int64_t>(parameters))
      .fact("through_autograd", "parameters, gradient through autograd", static_cast<std::int64_t>(through_autograd))
      .fact("delayed", "of them delayed", static_cast<std::int64_t>(delayed))
      .fact("pool_bytes", "pool", static_cast<std::int64_t>(pool_bytes), "bytes")
      .fact("static_bytes", "static buffers", static_cast<std::int64_t>(static_bytes), "bytes")
      .fact("executable_bytes", "executables", static_cast<std::int64_t>(executable_bytes), "bytes");
  report.list("warnings", "Warnings", warnings);
  callable::BranchTable table("graph");
  for (std::size_t i = 0; i < branches.size(); ++i) table.row(std::to_string(i + 1), branches[i]);
  table.add_to(report);
  return report;
}

GraphedCallable::GraphedCallable(std::shared_ptr<callable::CapturedCallable> captured) noexcept
    : captured_(std::move(captured)) {}
GraphedCallable::GraphedCallable(GraphedCallable&&) noexcept = default;
GraphedCallable& GraphedCallable::operator=(GraphedCallable&&) noexcept = default;
GraphedCallable::~GraphedCallable() = default;

std::vector<at::Tensor> GraphedCallable::call(std::span<const at::Tensor> inputs) {
  return unless_moved_from(captured_, "a graphed callable").call(inputs);
}

at::Tensor GraphedCallable::call_one(std::span<const at::Tensor> inputs) {
  std::vector<at::Tensor> outputs = unless_moved_from(captured_, "a graphed callable").call(inputs);
  if (outputs.size() != 1) [[unlikely]] {
    throw UsageError({.what = fmt::format("operator() returns one tensor, but the callable returns {}", outputs.size()),
                      .where = captured_->name(),
                      .fix = "use call() for a flat list, or forward() for the structure"});
  }
  return std::move(outputs.front());
}

c10::IValue GraphedCallable::forward(const std::vector<c10::IValue>& inputs) {
  return unless_moved_from(captured_, "a graphed callable").forward(inputs);
}
std::vector<at::Tensor> GraphedCallable::static_inputs() const {
  return unless_moved_from(captured_, "a graphed callable").static_inputs();
}
void GraphedCallable::check_current(const at::Tensor& output) const {
  unless_moved_from(captured_, "a graphed callable").check_current(output);
}
int GraphedCallable::in_flight() const noexcept { return captured_->in_flight(); }
int GraphedCallable::next_microbatch() const {
  return unless_moved_from(captured_, "a graphed callable").next_microbatch();
}
void GraphedCallable::restart_schedule() { unless_moved_from(captured_, "a graphed callable").restart_schedule(); }
GraphPoolRef GraphedCallable::pool() const { return unless_moved_from(captured_, "a graphed callable").pool(); }
CallableInfo GraphedCallable::info() const { return unless_moved_from(captured_, "a graphed callable").info(); }

bool GraphedCallable::backward_weights(int microbatch) {
  return unless_moved_from(captured_, "a graphed callable").backward_weights(microbatch);
}

void GraphedCallable::reset() {
  if (captured_ != nullptr) captured_->reset();
}

namespace callable {

CallableInfo CapturedCallable::info() const {
  check_alive("info()");
  CallableInfo info;
  std::set<std::string> warnings;
  const auto count = [&](const Graph& graph) {
    if (!graph.captured()) return;
    const GraphInfo one = graph.info();
    ++info.graphs;
    info.executable_bytes += one.executable_bytes;
    info.pool_bytes = std::max(info.pool_bytes, one.pool_bytes);
    warnings.insert(one.warnings.begin(), one.warnings.end());
    if (one.branches) info.branches.push_back(*one.branches);
  };
  for (const auto& mode : modes_) {
    if (mode == nullptr) continue;
    for (const auto& pass : mode->passes()) {
      count(pass->forward);
      count(pass->backward);
      count(pass->weights);
    }
    if (mode->has_backward()) {
      info.slots = std::max(info.slots, mode->passes().size());
      const GradientTargets& later = mode->later();
      info.delayed += later.direct_of.size() + later.routed_of.size();
      info.parameters += later.direct_of.size() + (mode->direct() != nullptr ? mode->direct()->parameters().size() : 0);
      info.through_autograd +=
          later.routed_of.size() + (mode->routed() != nullptr ? mode->routed()->parameters().size() : 0);
    }
    info.static_bytes += mode->static_bytes();
  }
  info.warnings.assign(warnings.begin(), warnings.end());
  return info;
}

}  // namespace callable
}  // namespace pianola
