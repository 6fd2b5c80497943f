#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/graph_impl.hpp>
#include <pianola/graph/internals/known_internals.hpp>
#include <pianola/graph/island.hpp>
#include <pianola/graph/update_check.hpp>
#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace pianola {
namespace {

[[noreturn]] void refuse_update(const std::string& why, std::string fix) {
  throw UsageError({.what = "update() " + why, .fix = std::move(fix)});
}

void check_options_of_update(const CaptureOptions& options, std::size_t inputs) {
  if (!options.trace) {
    refuse_update("needs the trace, which shows that the operations are the same, and 'trace' is off",
                  "leave 'trace' on");
  }
  if (!options.instantiate) {
    refuse_update("gives the capture to the executable at once, and 'instantiate' is off", "leave 'instantiate' on");
  }
  if (options.branches != 0 && options.branches != 1) {
    refuse_update("does not rebuild a graph in lanes, and 'branches' is set",
                  "leave 'branches' out, or call reset() and capture()");
  }
  if (options.inputs.size() != inputs) {
    refuse_update(
        fmt::format("was given {} tensors as 'inputs', and the capture has {}", options.inputs.size(), inputs),
        "pass as many inputs as the capture was given");
  }
}

void check_capture_of_update(const graph::CaptureResult& captured) {
  if (captured.trace == nullptr) {
    refuse_update("was called on a graph whose operations are not known, since it was captured with 'trace' off",
                  "leave 'trace' on in the capture");
  }
  if (captured.wanted_branches) {
    refuse_update("was called on a graph that was captured with 'branches', whose lanes hold for that capture alone",
                  "capture without 'branches', or call reset() and capture()");
  }
  if (!captured.groups.empty()) {
    refuse_update("was called on a graph that communicates with other ranks", "call reset() and capture()");
  }
  const auto ops = captured.trace->ops();
  if (std::any_of(ops.begin(), ops.end(), [](const OpRecord& op) { return graph::is_island(op.info->name); })) {
    refuse_update("was called on a graph with parts that stay eager, whose replays launch it in pieces",
                  "call reset() and capture()");
  }
}

}  // namespace

void Graph::Impl::check_may_update(const CaptureOptions& options) const {
  check_captured("update()");
  if (!process.is_this_process()) {
    refuse_update("was called in a forked child of the process that captured the graph",
                  "update in the process that captured");
  }
  if (!numbers.empty()) {
    refuse_update("was called on a graph with numbers, which replays are given without another capture",
                  "set its numbers; for other tensors or shapes call reset() and capture()");
  }
  check_capture_of_update(*result);
  check_options_of_update(options, inputs.size());
  graph::require_known_internals(device);
}

// The new capture has a backend of its own until it has the executable: see Note [Updates].
void Graph::Impl::update(const std::function<void()>& step, const CaptureOptions& options) {
  CaptureOptions taken_over = options;
  taken_over.branches = 0;
  taken_over.instantiate = false;
  taken_over.communication = false;
  if (options.pool.empty()) taken_over.pool = backend->pool();
  std::unique_ptr<graph::Backend> other = graph::make_backend(device);
  graph::CaptureResult recorded =
      graph::record_step(*other, step, taken_over, graph::EarlierCapture{backend.get(), result->trace.get()});
  other->keep_of(*backend);
  graph::LivingGraphs::of_this_process().remove(this);
  backend.swap(other);
  adopt(std::move(recorded));
  keep_shapes(options.inputs);
  failed_operation = 0;
}

void Graph::update(const std::function<void()>& step, const CaptureOptions& options) {
  const OneCall::Scope call = impl_->call("update()");
  impl_->check_may_update(options);
  impl_->update(step, options);
}

}  // namespace pianola
