#include <pianola/graph/cuda/branches.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/topology.hpp>
#include <pianola/graph/add_time.hpp>
#include <pianola/graph/branch_plan.hpp>
#include <pianola/graph/cuda/executable_account.hpp>
#include <pianola/graph/cuda/launch_trial.hpp>
#include <pianola/graph/cuda/library_memory.hpp>
#include <pianola/graph/cuda/trial_copies.hpp>
#include <pianola/parallel/kernel_pointers.hpp>
#include <pianola/torch_abi/cuda/workspace_table.hpp>
#include <pianola/trace/counted_index.hpp>
#include <pianola/trace/nondeterministic.hpp>

#include <ATen/Context.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

namespace pianola::graph {
namespace {

std::size_t free_device_bytes() {
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

std::vector<GraphEdge> graph_edges(const std::vector<parallel::NodeEdge>& edges) {
  std::vector<GraphEdge> result;
  result.reserve(edges.size());
  for (const parallel::NodeEdge& edge : edges) result.push_back({.from = edge.from, .to = edge.to});
  return result;
}

std::vector<parallel::NodeEdge> node_edges(const std::vector<GraphEdge>& edges) {
  std::vector<parallel::NodeEdge> result;
  result.reserve(edges.size());
  for (const GraphEdge& edge : edges) {
    result.push_back({.from = static_cast<std::uint32_t>(edge.from), .to = static_cast<std::uint32_t>(edge.to)});
  }
  return result;
}

// Seeds and offsets on the device.
std::vector<ByteSpan> spans_of(const std::vector<torch_abi::DrawWords>& words) {
  std::vector<ByteSpan> spans;
  for (const torch_abi::DrawWords& of_state : words) {
    for (const at::TensorBase& tensor : {of_state.seed(), of_state.offset()}) {
      const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
      spans.push_back({.begin = begin, .end = begin + tensor.nbytes()});
    }
  }
  return spans;
}

// What the copies of inputs will read is not known yet: they come before everything.
std::vector<parallel::KnownNodes> known_nodes(const Branches::Captured& captured,
                                              const std::vector<ByteSpan>& generators) {
  std::vector<parallel::KnownNodes> known;
  for (const CUgraphNode copy : captured.copies->nodes()) {
    known.push_back({.name = "copy of an input",
                     .nodes = {copy},
                     .barrier = "a copy of an input comes first: its source may be any memory"});
  }
  if (captured.advance.empty()) return known;
  known.push_back(
      {.name = "advance of the random generator", .nodes = {captured.advance.begin(), captured.advance.end()}});
  for (const ByteSpan& generator : generators) {
    known.back().accesses.push_back({.bytes = generator, .write = true, .memory = parallel::Memory::generator});
  }
  return known;
}

// Whether a result lies elsewhere than in the graph's pool: then scratch may too, and nobody has seen it.
bool allocates_elsewhere(const OpTrace& trace, const std::vector<ByteSpan>& allocated) {
  const parallel::SpanIndex pool(merged(allocated));
  for (const OpRecord& op : trace.ops()) {
    for (const TensorRecord& result : trace.outputs(op)) {
      if (!result.written || !result.made_in_step || !result.device.is_cuda() || result.span_bytes == 0) continue;
      const auto begin = reinterpret_cast<std::uintptr_t>(result.address);
      if (!pool.overlaps({.begin = begin, .end = begin + result.span_bytes})) return true;
    }
  }
  return false;
}

// Who uses a pool: itself, and each graph in it, those of torch's included.
long uses_of(const CudaPool& pool) {
  try {
    return c10::cuda::CUDACachingAllocator::getPoolUseCount(pool.device().index(), pool.id());
  } catch (const c10::Error&) {
    return std::numeric_limits<long>::max();  // an allocator that does not count
  }
}

// One whose schema may not say all that it writes, or that talks to other processes; empty: there is none.
std::string foreign_operator(const OpTrace& trace) {
  static constexpr std::array<std::string_view, 4> kKnown = {"aten::", "prims::", "pianola::", "torchvision::"};
  for (const OpRecord& op : trace.ops()) {
    std::string name = trace.name(op);
    if (name == "pianola::users_kernel") return name;  // of Triton, in code that torch.compile made
    if (std::ranges::none_of(kKnown, [&](std::string_view known) { return name.starts_with(known); })) return name;
  }
  return "";
}

void warn_of_nondeterminism(const OpTrace& trace, BranchInfo& info) {
  const std::vector<std::string> operators = trace::nondeterministic_operators(trace);
  if (operators.empty()) return;
  info.warnings.push_back(
      fmt::format("{} may give other bits from run to run, so two replays of one graph may differ. "
                  "torch.use_deterministic_algorithms(True) prevents that",
                  fmt::join(operators, ", ")));
}

}  // namespace

Branches::Branches(const CaptureOptions& options, CudaPool& pool, c10::cuda::CUDAStream stream)
    : options_(options.parallel),
      has_run_(options.warmup > 0 || options.parallel.warmed_up),
      instantiates_(options.instantiate),
      info_(requested_branches(options)),
      pool_(pool),
      stream_(stream) {
  if (info_.automatic) {
    info_.reason = why_no_trial(uses_of(pool_) + 1);  // this graph is not in it yet
    if (info_.reason.empty()) budget_ = BranchBudget(pool_.device());
    options_.memory_limit = std::min(options_.memory_limit, budget_.bytes());
  }
  if (info_.reason.empty()) reserve_workspaces();
}

void Branches::reserve_workspaces() {
  const auto wanted = static_cast<std::size_t>(options_.workspaces == 0 ? info_.branches : options_.workspaces);
  // Where the limit is narrow, some is left for reuse that is delayed.
  const std::size_t limit = info_.automatic ? options_.memory_limit / 4 * 3 : options_.memory_limit;
  const std::size_t affordable = limit / std::max<std::size_t>(WorkspaceColours::bytes_each(), 1);
  colours_ = std::min(wanted, affordable);
  if (colours_ < wanted && !info_.automatic) {
    info_.warnings.push_back(fmt::format(
        "memory_limit leaves no room for {} workspaces of {} bytes: matrix products share {} and wait for each "
        "other",
        wanted, WorkspaceColours::bytes_each(), std::max<std::size_t>(colours_, 1)));
  }
  if (colours_ < 2) {
    colours_ = 0;
    return;
  }
  if (!torch_abi::keeps_workspaces()) return;  // see Note [Workspaces that products allocate]
  try {
    pool_.colours().reserve(colours_, stream_);
    info_.workspace_bytes = pool_.colours().bytes();
  } catch (const c10::OutOfMemoryError&) {
    info_.reason = fmt::format(
        "the device has no memory for {} workspaces of {} bytes; capture with a smaller "
        "'workspaces', or free memory",
        colours_, WorkspaceColours::bytes_each());
    colours_ = 0;
  }
}

std::vector<trace::OpObserver*> Branches::observers(const AllocationWatch& allocations, bool is_planned) {
  if (!info_.reason.empty()) return {};
  const bool kept = torch_abi::keeps_workspaces();
  const std::size_t workspaces = kept ? colours_ * WorkspaceColours::bytes_each() : 0;
  // A step that only just fits must not fail for what is held.
  const std::size_t limit =
      std::min(options_.memory_limit - std::min(options_.memory_limit, workspaces), free_device_bytes() / 2);
  turns_ = std::make_unique<WorkspaceTurns>(pool_.colours(), kept ? colours_ : 0, stream_.stream());
  delay_ = std::make_unique<ReuseDelay>(
      allocations, stream_,
      ReuseDelay::Limits{.operations = is_planned ? 0 : static_cast<std::size_t>(options_.reuse_delay),
                         .bytes = limit,
                         .workspaces = std::max<std::size_t>(colours_, 1) - 1,  // one is in use
                         .workspace_bytes = kept ? std::numeric_limits<std::size_t>::max() : least_workspace_bytes()});
  return {turns_.get(), delay_.get()};
}

void Branches::stop_recording() {
  turns_.reset();
  if (delay_ != nullptr) info_.held_bytes = delay_->most_bytes();
  delay_.reset();
  budget_.keep(info_.workspace_bytes + info_.held_bytes);
}

std::optional<parallel::Plan> Branches::plan(const Captured& captured, const GraphTopology& topology) {
  if (allocates_elsewhere(*captured.trace, captured.allocated)) {
    info_.reason =
        "the step's memory is not all in the graph's pool (torch.cuda.use_mem_pool?), so scratch is not seen";
    return std::nullopt;
  }
  info_.nodes = topology.nodes().size();
  info_.edges_before = topology.edges().size();
  parallel::StepUnits step;
  {
    const AddTime timed(info_.plan_time);
    step = find_units(captured, topology);
  }
  return plan_branches(std::move(step), info_);
}

std::optional<parallel::Plan> Branches::plan(const Captured& captured) {
  if (!info_.reason.empty()) return std::nullopt;
  return plan(captured, GraphTopology::read(captured.graph));
}

void Branches::rebuild(const Captured& captured) {
  if (captured.trace == nullptr || !info_.reason.empty()) return;
  try {
    const GraphTopology topology = GraphTopology::read(captured.graph);
    const std::optional<parallel::Plan> plan = this->plan(captured, topology);
    if (!plan) return;
    chart_ = parallel::chart_of(*plan);
    make(captured, topology, *plan);
  } catch (const std::exception& error) {
    rebuilt_.reset();
    info_.reason = fmt::format("the graph could not be rebuilt: {}", error.what());
  }
}

void Branches::make(const Captured& captured, const GraphTopology& topology, const parallel::Plan& plan) {
  const auto is_unknown = [](const parallel::Unit& unit) { return unit.writes_unknown; };
  if (const auto found = std::find_if(plan.units.begin(), plan.units.end(), is_unknown); found != plan.units.end()) {
    unknown_writer_ = found->name;
    why_unknown_ = found->barrier;
  }
  communicates_ = std::ranges::any_of(plan.units, &parallel::Unit::communicates);
  std::optional<RewiredGraph> graph;
  {
    const AddTime timed(info_.rebuild_time);
    graph = RewiredGraph::make(captured.graph, topology, graph_edges(plan.edges));
  }
  if (!prove_branches(plan, info_.nodes, node_edges(graph->read_edges()), info_)) return;

  const AddTime timed(info_.rebuild_time);
  InputCopies copies = captured.copies->in([&](CUgraphNode node) { return graph->node(*topology.index_of(node)); });
  const ExecutableAccount account;
  Executable executable;
  if (captured.instantiate) {
    executable = Executable::instantiate(graph->get(), {.auto_free_on_launch = true, .use_node_priority = true});
    copies.start(executable.get());
  }
  rebuilt_.emplace(Rebuilt{*std::move(graph), std::move(executable), std::move(copies), account.taken()});
  warn_of_nondeterminism(*captured.trace, info_);
  if (info_.automatic) {
    counted_index_ = trace::index_that_is_counted(*captured.trace);
    foreign_operator_ = foreign_operator(*captured.trace);
  }
}

parallel::StepUnits Branches::find_units(const Captured& captured, const GraphTopology& topology) const {
  parallel::HiddenMemory hidden{.workspaces = BlasWorkspaces::spans_on(stream_.stream()),
                                .generators = spans_of(captured.generators)};
  const std::vector<ByteSpan> colours = pool_.colours().spans();
  const std::vector<ByteSpan> libraries = library_memory(topology, captured.allocated);
  hidden.workspaces.insert(hidden.workspaces.end(), colours.begin(), colours.end());
  hidden.workspaces.insert(hidden.workspaces.end(), libraries.begin(), libraries.end());
  return parallel::units_of(*captured.trace, topology, hidden, known_nodes(captured, hidden.generators),
                            options_.split_kernels);
}

bool Branches::choose(const Trial& trial) {
  if (!rebuilt_ || info_.rebuilt) return false;
  std::string why_not = why_no_trial();
  if (why_not.empty()) why_not = save_for_trial(*trial.trace, trial.kept, pool_.device().index(), trial.save);
  if (!why_not.empty()) {
    decide_untimed(std::move(why_not));
  } else if (!trial.launcher.hold_trial(pool_, [&] { return try_against(trial.serial); })) {
    rebuilt_.reset();
  }
  return info_.rebuilt;
}

// A trial runs the step: what it writes has to be known, what it reads has to be there, and nobody else's may be hit.
std::string Branches::why_no_trial(long uses_of_pool) const {
  if (!options_.self_check) return "self_check is off";
  if (!instantiates_) return "the executable is made later";
  if (!has_run_) return "the step has not run yet (warmup = 0, and warmed_up is off), so its inputs may not be there";
  if (uses_of_pool > 2) return "the pool is shared, and a trial could overwrite what its other graphs need";
  return "";
}

std::string Branches::why_no_trial() const {
  if (communicates_) return "a trial would communicate, and other ranks may make none";
  if (!unknown_writer_.empty())
    return fmt::format("a trial could not be put back: what '{}' writes is not known{}{}", unknown_writer_,
                       why_unknown_.empty() ? "" : ": ", why_unknown_);
  if (!counted_index_.empty())
    return "a trial could run out of bounds: '" + counted_index_ + "' takes an index that the step counts up";
  if (!foreign_operator_.empty())
    return "a trial could do more than is known: '" + foreign_operator_ + "' is no operator of torch's";
  return why_no_trial(uses_of(pool_));
}

// Launches both. Not to be taken where there is no memory for that.
bool Branches::try_against(const Executable& serial) {
  const AddTime timed(info_.trial_time);
  LaunchTimes times;
  try {
    times = time_launches(serial, rebuilt_->executable, stream_);
  } catch (const DeviceError& error) {
    info_.reason = fmt::format("the rebuilt graph could not be tried: {}", error.what());
    return false;
  }
  info_.serial_us = times.serial_us;
  info_.rebuilt_us = times.rebuilt_us;
  info_.floor_us = times.serial_us * info_.modelled_critical_us / info_.modelled_serial_us;
  info_.rebuilt = times.rebuilt_us <= (1 - kLeastGain) * times.serial_us;
  if (!info_.rebuilt) {
    info_.reason = fmt::format(
        "a replay of the rebuilt graph took {:.1f} us, of the captured one {:.1f} us: less than "
        "{:.0f} % faster",
        times.rebuilt_us, times.serial_us, 100 * kLeastGain);
  }
  return info_.rebuilt;
}

// It is taken where it was asked for.
void Branches::decide_untimed(std::string why) {
  if (info_.automatic) {
    info_.reason = std::move(why);
    return rebuilt_.reset();
  }
  info_.untimed = std::move(why);
  info_.rebuilt = true;
}

InputCopies Branches::give_up(std::string why) {
  info_.rebuilt = false;
  info_.reason = std::move(why);
  InputCopies copies = std::move(rebuilt_->copies);
  rebuilt_.reset();
  return copies;
}

}  // namespace pianola::graph
