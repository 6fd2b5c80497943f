#include <pianola/graph/graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/moved_from.hpp>
#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/graph_impl.hpp>
#include <pianola/graph/group_graphs.hpp>
#include <pianola/graph/hang_watch.hpp>
#include <pianola/graph/internals/known_internals.hpp>
#include <pianola/graph/living_graphs.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/process_mark.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/trace/plain_check.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace pianola {

bool is_capturing() noexcept { return graph::capture_is_open(); }

bool is_recording() noexcept { return graph::capture_stage() == graph::CaptureStage::recording; }

Graph::Impl::Impl(c10::Device wanted) : device(graph::usable_device(wanted)), backend(graph::make_backend(device)) {}

namespace {

std::optional<std::vector<std::uintptr_t>> buffers_of_collectives(const OpTrace* trace) {
  if (trace == nullptr) return std::nullopt;
  std::vector<std::uintptr_t> buffers;
  for (const OpRecord& op : trace->ops()) {
    if (!op.info->collective) continue;
    for (const auto& tensors : {trace->inputs(op), trace->outputs(op)}) {
      for (const TensorRecord& tensor : tensors) buffers.push_back(reinterpret_cast<std::uintptr_t>(tensor.address));
    }
  }
  return buffers;
}

}  // namespace

void Graph::Impl::adopt(graph::CaptureResult recorded) {
  result.emplace(std::move(recorded));
  process = graph::ProcessMark();
  graph::LivingGraphs::of_this_process().add(this, device, [this]() -> std::optional<graph::AccountedGraph> {
    if (!process.is_this_process()) return std::nullopt;
    const OneCall::Look look = this->look("memory()");
    return memory();
  });
  if (result->groups.empty()) return;
  backend->watch_replays(result->groups, result->trace ? graph::words_of_collectives(*result->trace) : "collectives");
  graph::GroupGraphs::of_this_process().add(this, backend->pool().state().get(), result->groups,
                                            buffers_of_collectives(result->trace.get()), [this] {
                                              if (!process.is_this_process()) return;
                                              const OneCall::Scope call = this->call("destroy_process_group()");
                                              drop();
                                            });
}

Graph::Impl::~Impl() {
  graph::LivingGraphs::of_this_process().remove(this);
  if (result && !result->groups.empty()) graph::GroupGraphs::of_this_process().remove(this);
}

void Graph::Impl::check_may_capture() const {
  if (result) {
    throw UsageError(
        {.what = "the graph holds a capture already", .fix = "call reset() to drop it, or capture into another Graph"});
  }
  graph::require_known_internals(device);
}

void Graph::Impl::check_captured(const char* call) const {
  if (!result) [[unlikely]] {
    throw UsageError({.what = fmt::format("{} was called on a graph that holds no capture", call),
                      .fix = "call capture() first; after a failed capture, reset() or the end of its process group "
                             "the graph is empty"});
  }
}

std::shared_ptr<PoolState> Graph::Impl::pool_of_its_own(const char* call) const {
  check_captured(call);
  std::shared_ptr<PoolState> pool = backend->pool().state();
  const std::size_t others = pool->graphs().count() - 1;
  if (others == 0) return pool;
  throw UsageError({.what = fmt::format(
                        "{} was called on a graph that shares its pool with {} other{}: a pool sleeps and wakes with "
                        "all of its graphs",
                        call, others, others == 1 ? "" : "s"),
                    .fix = fmt::format("call pool.{0}, of the GraphPool that they were captured into", call)});
}

void Graph::Impl::check_replayable() {
  check_captured("replay()");
  failed_operation = 0;
  if (graph::capture_is_open()) [[unlikely]] {
    throw UsageError(
        {.what = "replay() was called while a capture is open on this thread, or warms up; graphs do not nest, "
                 "and nothing was launched",
         .fix = "inside the captured step, call the code that the graph was captured from; or replay outside of it"});
  }
  if (!process.is_this_process()) [[unlikely]] {
    throw UsageError({.what =
                          "replay() was called in a forked child of the process that captured the graph; nothing was "
                          "launched",
                      .fix = "capture in the process that replays; forked data loader workers must not use graphs"});
  }
  if (!result->dropout.intact()) [[unlikely]]
    throw ReplayError(result->dropout.offence());
  if (result->outside && !result->outside->intact()) [[unlikely]]
    throw ReplayError(result->outside->offence());
  if (result->asleep != nullptr && !result->asleep->intact()) [[unlikely]]
    throw ReplayError(result->asleep->offence());
  check_modes();
  if (result->region != 0) [[unlikely]]
    check_region();
}

void Graph::Impl::check_region() const {
  using trace::NumericRegion;
  const std::uint64_t now = NumericRegion::current_number();
  if (now == result->region) return;
  throw ReplayError(
      {.what = fmt::format("the graph was captured in a region with {}, and replay() was called in {}; nothing "
                           "was launched",
                           NumericRegion::words_of(result->region),
                           now == 0 ? "none" : "one with " + NumericRegion::words_of(now)),
       .fix = "replay it inside of a region like that of its capture"});
}

void Graph::Impl::tell_region() const {
  trace::NumericRegion* const region = trace::NumericRegion::current();
  if (region == nullptr) return;
  for (const auto& what : result->region_uses) region->ran(what);
}

// Modes that the step was captured under, if any, did their part then.
void Graph::Impl::check_modes() const {
  using trace::Oddity;
  Oddity oddity = trace::oddity_of_modes();
  if (oddity == Oddity::none && !result->under_function_mode && trace::function_modes().users) {
    oddity = Oddity::function_mode;
  }
  if (oddity != Oddity::none) [[unlikely]]
    throw ReplayError(trace::refuse_modes(oddity, "replay()", "nothing was launched"));
}

namespace {

// With its line where the trace knows it.
std::string in_words(const graph::Backend::CalledOperation& called, const OpTrace* trace) {
  std::string where = fmt::format("operation {} of the graph, {}", called.number, called.info->schema().name());
  const auto recorded = trace == nullptr ? std::span<const OpRecord>() : trace->ops();
  if (called.number > recorded.size() || recorded[called.number - 1].info != called.info) return where;
  const std::string place = trace->place(recorded[called.number - 1]);
  return place.empty() ? where : where + ", " + place;
}

}  // namespace

template <typename Launch>
void Graph::Impl::run(const Launch& launch) {
  using Called = graph::Backend::CalledOperation;
  try {
    launch();
  } catch (c10::Error& error) {
    const std::optional<Called> failed = backend->failed();
    failed_operation = failed.value_or(Called{}).number;
    if (failed) error.add_context("in a replay: " + in_words(*failed, result->trace.get()));
    throw;
  } catch (...) {
    failed_operation = backend->failed().value_or(Called{}).number;
    throw;
  }
}

void Graph::Impl::replay() {
  run([this] { backend->replay(); });
  result->collectives.count();
  if (!result->region_uses.empty()) [[unlikely]]
    tell_region();
}

void Graph::Impl::replay(std::size_t first, std::size_t last) {
  run([&] { backend->replay_operations(first, last); });
  if (result->trace && last < result->trace->ops().size()) return;
  result->collectives.count();
  if (!result->region_uses.empty()) [[unlikely]]
    tell_region();
}

void Graph::Impl::drop() {
  graph::LivingGraphs::of_this_process().remove(this);
  if (result && !result->groups.empty()) graph::GroupGraphs::of_this_process().remove(this);
  backend->reset();
  result.reset();
  numbers.unbind();
}

Graph::Graph(c10::Device device) : impl_(std::make_unique<Impl>(device)) {}
Graph::Graph(Graph&&) noexcept = default;

Graph& Graph::operator=(Graph&& other) noexcept {
  Graph old(std::move(*this));
  impl_ = std::move(other.impl_);
  return *this;
}

// In a forked child the device's driver cannot be called: what the parent's graph holds there is the parent's. At the end of the
// process it frees what it holds by itself.
Graph::~Graph() {
  if (Impl* const impl = impl_.release()) graph::end_made_with(impl->process, impl);
}

void Graph::Impl::capture(const std::function<void()>& step, const CaptureOptions& options) {
  adopt(graph::record_step(*backend, step, options));
  keep_shapes(options.inputs);
}

void Graph::Impl::keep_shapes(std::span<const at::Tensor> captured_inputs) {
  inputs.clear();
  for (const at::Tensor& input : captured_inputs) inputs.push_back(input.sizes().vec());
}

// A copy takes the input's bytes from the source, and would take what lies behind a shorter one.
void Graph::Impl::check_sources(std::span<const at::Tensor> sources) const {
  if (sources.size() != inputs.size()) [[unlikely]] {
    throw UsageError({.what = fmt::format("replay() was given {} tensors for {} inputs; nothing was launched",
                                          sources.size(), inputs.size()),
                      .fix = "pass one tensor for each of CaptureOptions::inputs"});
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].defined() || sources[i].sizes() == c10::IntArrayRef(inputs[i])) [[likely]]
      continue;
    throw UsageError(
        {.what = fmt::format("replay() was given {} for input {}, whose shape is [{}]; nothing was launched",
                             trace::describe(sources[i]), i, fmt::join(inputs[i], ", ")),
         .fix = "pass a tensor of the input's shape; another shape needs a graph of its own"});
  }
}

void Graph::capture(const std::function<void()>& step, const CaptureOptions& options) {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("capture()");
  impl_->check_may_capture();
  if (impl_->numbers.empty()) return impl_->capture(step, options);
  graph::NamedNumbers::Trials trials(impl_->numbers, options, graph::GraphNumbers(*this));
  impl_->capture([&] { trials.run(step); }, trials.options());
  try {
    trials.bind(*impl_->result->trace);
  } catch (...) {
    impl_->drop();
    throw;
  }
}

Number Graph::number(std::string name, double value) {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("number()");
  if (impl_->result) {
    throw UsageError({.what = fmt::format("the number '{}' was declared after the capture", name),
                      .fix = "declare it before; reset() drops the capture"});
  }
  return impl_->numbers.declare(std::move(name), value);
}

Number Graph::number(std::string_view name) const { return unless_moved_from(impl_, "a graph").numbers.find(name); }

void Graph::replay() {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("replay()");
  impl_->check_replayable();
  impl_->numbers.give(graph::GraphNumbers(*this));
  if (!impl_->inputs.empty()) impl_->backend->keep_inputs();
  impl_->replay();
}

void Graph::replay(std::span<const at::Tensor> sources) {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("replay()");
  impl_->check_replayable();
  impl_->check_sources(sources);
  impl_->numbers.give(graph::GraphNumbers(*this));
  impl_->backend->copy_inputs(sources);
  impl_->replay();
}

void Graph::instantiate() {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("instantiate()");
  impl_->check_captured("instantiate()");
  if (impl_->backend->pool().state()->is_asleep()) {
    throw UsageError({.what = "instantiate() was called on a graph whose pool is asleep",
                      .fix = "call the pool's resume(), or resume_all(), before"});
  }
  impl_->backend->instantiate();
}

std::size_t Graph::suspend(const SuspendOptions& options) {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("suspend()");
  return impl_->pool_of_its_own("suspend()")->suspend(options);
}

void Graph::resume() {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("resume()");
  impl_->pool_of_its_own("resume()")->resume();
}

void Graph::reset() {
  if (impl_ == nullptr || !impl_->process.is_this_process()) return;
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("reset()");
  impl_->drop();
}

std::size_t Graph::failed_operation() const noexcept { return impl_->failed_operation; }

bool Graph::captured() const noexcept { return impl_ != nullptr && impl_->result.has_value(); }

c10::Device Graph::device() const noexcept { return impl_->device; }

GraphPoolRef Graph::pool() const {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("pool()");
  impl_->check_captured("pool()");
  return impl_->backend->pool();
}

GraphInfo Graph::info() const {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("info()");
  impl_->check_captured("info()");
  return impl_->info();
}

GraphMemory Graph::memory() const {
  return graph::described([this] {
    const OneCall::Look look = unless_moved_from(impl_, "a graph").look("memory()");
    impl_->check_captured("memory()");
    return impl_->memory();
  }());
}

GraphInfo Graph::Impl::info() const {
  GraphInfo info;
  info.operations = result->trace ? result->trace->ops().size() : 0;
  info.warmup_time = result->warmup_time;
  info.capture_time = result->capture_time;
  info.agreement_time = result->agreement_time;
  info.instantiate_time = result->end_time;
  info.warnings = result->warnings;
  backend->describe(info);
  return info;
}

const OpTrace* Graph::trace() const {
  unless_moved_from(impl_, "a graph").check_captured("trace()");
  return impl_->result->trace.get();
}

void* Graph::raw_executable() const {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("raw_executable()");
  impl_->check_captured("raw_executable()");
  return impl_->backend->raw_executable();
}

void* Graph::raw_graph() const {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("raw_graph()");
  impl_->check_captured("raw_graph()");
  return impl_->backend->raw_graph();
}

void Graph::dump_dot(const std::filesystem::path& file) const {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("dump_dot()");
  impl_->check_captured("dump_dot()");
  std::ofstream out(file);
  impl_->backend->write_dot(out, impl_->result->trace.get());
  out.close();
  if (!out) throw UsageError({.what = fmt::format("cannot write '{}'", file.string())});
}

void Graph::dump_lanes(const std::filesystem::path& file) const {
  const OneCall::Scope call = unless_moved_from(impl_, "a graph").call("dump_lanes()");
  impl_->check_captured("dump_lanes()");
  const parallel::LaneChart* chart = impl_->backend->lanes();
  if (chart == nullptr) {
    const auto branches = impl_->info().branches;
    throw UsageError({.what = branches ? fmt::format("there are no lanes to draw: {}", branches->reason)
                                       : "there are no lanes to draw: the graph was captured without 'branches'",
                      .fix = "capture with {.branches = 4}; GraphInfo::branches says what came of it"});
  }
  std::ofstream out(file);
  parallel::write_svg(out, *chart, "Lanes of a captured step");
  out.close();
  if (!out) throw UsageError({.what = fmt::format("cannot write '{}'", file.string())});
}

Report GraphInfo::report() const {
  Report report("Graph");
  report.fact("backend", "backend", backend)
      .fact("nodes", "nodes", static_cast<std::int64_t>(nodes))
      .fact("kernels", "kernels", static_cast<std::int64_t>(kernels))
      .fact("edges", "edges", static_cast<std::int64_t>(edges))
      .fact("operations", "operations", static_cast<std::int64_t>(operations))
      .fact("pool_bytes", "pool", static_cast<std::int64_t>(pool_bytes), "bytes")
      .fact("planned_bytes", "laid out by a plan", static_cast<std::int64_t>(planned_bytes), "bytes")
      .fact("planned_bound_bytes", "least that a plan takes", static_cast<std::int64_t>(planned_bound_bytes), "bytes")
      .fact("executable_bytes", "executable", static_cast<std::int64_t>(executable_bytes), "bytes")
      .fact("shares_executable", "shared with other graphs", shares_executable)
      .fact("retained_bytes", "retained", static_cast<std::int64_t>(retained_bytes), "bytes")
      .fact("draws_random_numbers", "draws random numbers", draws_random_numbers)
      .fact("warmup_us", "warm-up", static_cast<std::int64_t>(warmup_time.count()), "us")
      .fact("capture_us", "capture", static_cast<std::int64_t>(capture_time.count()), "us")
      .fact("agreement_us", "agreement of ranks", static_cast<std::int64_t>(agreement_time.count()), "us")
      .fact("instantiate_us", "instantiate", static_cast<std::int64_t>(instantiate_time.count()), "us");
  ReportTable by_type("types", backend == "tape" ? "Operations by operator" : "Nodes by type", {{"type"}, {"nodes"}});
  for (const auto& [type, count] : types) by_type.row({type, static_cast<std::int64_t>(count)});
  report.table(std::move(by_type));
  report.list("warnings", "Warnings", warnings);
  if (branches) report.section("branches", branches->report());
  return report;
}

}  // namespace pianola
