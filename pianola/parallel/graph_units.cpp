#include <pianola/parallel/step_units.hpp>

#include <pianola/cuda/topology.hpp>
#include <pianola/parallel/cost_model.hpp>
#include <pianola/parallel/graph_chain.hpp>
#include <pianola/parallel/kernel_pointers.hpp>
#include <pianola/parallel/op_accesses.hpp>
#include <pianola/parallel/op_split.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/plain_check.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

namespace pianola::parallel {
namespace {

// Who added a node.
struct Maker {
  enum class Kind : std::uint8_t { foreign, op, known };
  Kind kind = Kind::foreign;
  std::size_t index = 0;  // in OpTrace::ops(), or among the known nodes

  friend bool operator==(const Maker&, const Maker&) = default;
};

// Note [Units of a graph]
// The chain of nodes is cut where the maker changes. A run of nodes that nobody is known to have made is a barrier; so
// is an operation whose nodes are not one run, since what came in between may belong to it. What remains has the
// accesses that the trace tells, and those that only the arguments of its kernels show: workspaces and generators.

// Note [Collectives in lanes]
// NCCL captures a collective as a kernel with an event before it and one behind it, most often on a stream of its own.
// These nodes are one unit, which reads and writes the tensors that it was given; NCCL's own memory is used by collectives
// alone. All collectives of a rank keep the order of the capture, whatever their communicators: two that are not ordered
// may each wait on another rank for the other, where a device has no room for both. What a step computes on its one stream
// is a chain, and so is right in that order. Whether it waited for the collectives that it had to wait for, and whether
// these were in one order, only the captured edges tell: see plan_branches().
class GraphUnits {
 public:
  GraphUnits(const OpTrace& trace, const GraphTopology& graph, const HiddenMemory& hidden,
             std::span<const KnownNodes> known, bool split_kernels)
      : trace_(trace), graph_(graph), hidden_(hidden), known_(known), split_kernels_(split_kernels) {}

  StepUnits build() {
    find_makers();
    StepUnits step;
    step.refusal = refuse_collectives();
    if (!step.refusal.empty()) return step;
    Chain chain = chain_of(
        graph_, [this](std::size_t node) { return name_of(node); },
        [this](std::size_t node) { return is_collective(makers_[node]); });
    step.refusal = std::move(chain.refusal);
    if (!step.refusal.empty()) return step;

    find_accesses();
    count_runs(chain.order);
    for (std::size_t first = 0; first < chain.order.size();) {
      const std::size_t last = end_of_run(chain.order, first);
      add_run(std::vector(chain.order.begin() + static_cast<std::ptrdiff_t>(first),
                          chain.order.begin() + static_cast<std::ptrdiff_t>(last)));
      first = last;
    }
    step.units = std::move(units_);
    const auto communicates = [](const Unit& unit) { return unit.communicates; };
    if (std::any_of(step.units.begin(), step.units.end(), communicates)) step.captured = captured_edges(step.units);
    return step;
  }

 private:
  using Nodes = std::vector<std::uint32_t>;

  void find_makers() {
    makers_.resize(graph_.nodes().size());
    const auto claim = [&](std::span<const void* const> handles, Maker maker) {
      for (const void* handle : handles) {
        const auto node = graph_.index_of(static_cast<CUgraphNode>(const_cast<void*>(handle)));
        if (node) makers_[*node] = maker;
      }
    };
    for (std::size_t i = 0; i < known_.size(); ++i) claim(known_[i].nodes, {Maker::Kind::known, i});
    for (std::size_t i = 0; i < trace_.ops().size(); ++i) claim(trace_.nodes(trace_.ops()[i]), {Maker::Kind::op, i});
  }

  [[nodiscard]] std::string name_of(std::size_t node) const {
    std::string name = to_string(graph_.nodes()[node]);
    const Maker& maker = makers_[node];
    if (maker.kind == Maker::Kind::op) return name + " of " + trace_.name(trace_.ops()[maker.index]);
    if (maker.kind == Maker::Kind::known) return name + " (" + known_[maker.index].name + ")";
    return name + " outside any operation";
  }

  [[nodiscard]] bool is_collective(const Maker& maker) const {
    return maker.kind == Maker::Kind::op && trace_.ops()[maker.index].info->collective;
  }

  [[nodiscard]] std::string refuse_collectives() const {
    for (const OpRecord& op : trace_.ops()) {
      if (op.info->collective && !trace::may_be_in_a_step(trace::oddity_of_operator(op.info->schema().name()))) {
        return trace_.name(op) + " communicates with other processes, which have to do so in the same order";
      }
      if (op.info->collective && op.nodes == 0) {
        return trace_.name(op) + " adds nothing to the graph where it is called: it belongs to a group of calls";
      }
    }
    return "";
  }

  // Whether the edges whose one end is among these nodes have the other in the same operation.
  [[nodiscard]] bool stay_within(std::span<const std::uint32_t> nodes, std::size_t GraphEdge::*end) const {
    return std::none_of(graph_.edges().begin(), graph_.edges().end(), [&](const GraphEdge& edge) {
      return makers_[edge.from] != makers_[edge.to] &&
             std::find(nodes.begin(), nodes.end(), static_cast<std::uint32_t>(edge.*end)) != nodes.end();
    });
  }

  // A collective's events are where its kernel is: what waits for the kernel waits for all of the unit, and the unit for
  // what the kernel waits for.
  [[nodiscard]] std::vector<NodeEdge> captured_edges(std::span<const Unit> units) const {
    std::vector<std::uint32_t> first(graph_.nodes().size()), last(graph_.nodes().size());
    std::iota(first.begin(), first.end(), 0);
    std::iota(last.begin(), last.end(), 0);
    const auto is_event = [&](std::uint32_t node) {
      const NodeType type = graph_.nodes()[node].type;
      return type == NodeType::event_wait || type == NodeType::event_record;
    };
    std::vector<NodeEdge> edges;
    for (const Unit& unit : units) {
      if (!unit.communicates) continue;
      const auto begin = std::find_if_not(unit.nodes.begin(), unit.nodes.end(), is_event);
      const auto end = std::find_if_not(unit.nodes.rbegin(), unit.nodes.rend(), is_event);
      if (begin == unit.nodes.end()) continue;
      if (stay_within({unit.nodes.begin(), begin}, &GraphEdge::from)) first[*begin] = unit.nodes.front();
      if (stay_within({end.base(), unit.nodes.end()}, &GraphEdge::to)) last[*end] = unit.nodes.back();
    }
    for (const GraphEdge& edge : graph_.edges()) {
      const auto from = static_cast<std::uint32_t>(edge.from), to = static_cast<std::uint32_t>(edge.to);
      const bool within = makers_[from] == makers_[to] && is_collective(makers_[from]);
      edges.push_back(within ? NodeEdge{from, to} : NodeEdge{last[from], first[to]});
    }
    return edges;
  }

  void find_accesses() {
    StorageOwners owners;
    accesses_.reserve(trace_.ops().size());
    for (const OpRecord& op : trace_.ops()) {
      accesses_.push_back(accesses_of(trace_, op, owners));
      knows_scratch_ = knows_scratch_ || op.blocks > 0;
    }
    for (const OpRecord& op : trace_.ops()) {
      if (op.nodes == 0) continue;
      device_ = device_of(op);
      break;
    }
    workspaces_ = SpanIndex(hidden_.workspaces);
    generators_ = SpanIndex(hidden_.generators);
  }

  [[nodiscard]] std::size_t end_of_run(const Nodes& order, std::size_t first) const {
    std::size_t last = first + 1;
    while (last < order.size() && makers_[order[last]] == makers_[order[first]]) ++last;
    return last;
  }

  void count_runs(const Nodes& order) {
    op_runs_.resize(trace_.ops().size());
    known_runs_.resize(known_.size());
    for (std::size_t first = 0; first < order.size(); first = end_of_run(order, first)) {
      const Maker& maker = makers_[order[first]];
      if (maker.kind == Maker::Kind::op) ++op_runs_[maker.index];
      if (maker.kind == Maker::Kind::known) ++known_runs_[maker.index];
    }
  }

  void add_run(Nodes nodes) {
    const Maker maker = makers_[nodes.front()];
    switch (maker.kind) {
      case Maker::Kind::op:
        return add_op(maker.index, std::move(nodes));
      case Maker::Kind::known:
        return add_known(maker.index, std::move(nodes));
      case Maker::Kind::foreign:
        Unit unit{.name = "nodes outside any operation", .nodes = std::move(nodes)};
        unit.barrier = name_of(unit.nodes.front()) + " may touch anything";
        unit.writes_unknown = true;
        return add(std::move(unit));
    }
  }

  void add(Unit unit) {
    unit.cost_us = unit.communicates ? collective_cost_us(unit.accesses) : cost_us(unit.nodes.size(), unit.accesses);
    units_.push_back(std::move(unit));
  }

  void add_known(std::size_t index, Nodes nodes) {
    const KnownNodes& known = known_[index];
    Unit unit{.name = known.name, .nodes = std::move(nodes), .accesses = known.accesses, .barrier = known.barrier};
    std::erase_if(unit.accesses, [](const Access& access) { return access.bytes.empty(); });
    if (unit.barrier.empty() && known_runs_[index] > 1) unit.barrier = "other nodes run between those of " + known.name;
    add(std::move(unit));
  }

  void add_op(std::size_t index, Nodes nodes) {
    const OpRecord& op = trace_.ops()[index];
    Unit unit{.name = trace_.name(op), .op = index, .nodes = std::move(nodes), .accesses = accesses_[index]};
    if (op.info->collective) return add_collective(op, std::move(unit));
    add_hidden(op, unit);
    unit.barrier = why_barrier(op, unit);
    unit.writes_unknown = unit.writes_unknown || !unit.barrier.empty();
    if (unit.barrier.empty() && op_runs_[index] > 1) unit.barrier = "other nodes run between those of " + unit.name;
    if (unit.barrier.empty() && unit.nodes.size() > 1 && knows_scratch_ &&
        (split_kernels_ || is_known_to_split(trace_, op))) {
      std::vector<Unit> pieces = split_by_pointers(unit, graph_);
      for (Unit& piece : pieces) add(std::move(piece));
      if (!pieces.empty()) return;
    }
    add(std::move(unit));
  }

  void add_collective(const OpRecord& op, Unit unit) {
    unit.communicates = true;
    unit.accesses.push_back(order_of_collectives());
    if (op_runs_[unit.op] > 1) unit.barrier = "other nodes run between those of " + unit.name;
    if (unit.barrier.empty()) unit.barrier = barrier_of(trace_, op);
    unit.writes_unknown = !unit.barrier.empty();
    add(std::move(unit));
  }

  [[nodiscard]] std::string why_barrier(const OpRecord& op, Unit& unit) {
    if (touches_other_device(op)) return unit.name + " has a tensor on another device than the step";
    if (std::string why = barrier_of(trace_, op); !why.empty()) return why;
    return is_torchs_own(trace_, op) ? "" : audit(unit);
  }

  // Of the tensors on a GPU; numbers are often tensors on the CPU.
  [[nodiscard]] std::optional<c10::Device> device_of(const OpRecord& op) const {
    for (const auto tensors : {trace_.outputs(op), trace_.inputs(op)}) {
      for (const TensorRecord& tensor : tensors) {
        if (!tensor.device.is_cpu()) return tensor.device;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] bool touches_other_device(const OpRecord& op) const {
    const auto is_other = [&](const TensorRecord& tensor) {
      return !tensor.device.is_cpu() && tensor.device != device_;
    };
    const auto inputs = trace_.inputs(op);
    const auto outputs = trace_.outputs(op);
    return std::any_of(inputs.begin(), inputs.end(), is_other) || std::any_of(outputs.begin(), outputs.end(), is_other);
  }

  // Workspaces count as written by every kernel that points into them, and by every one that cannot be read.
  void add_hidden(const OpRecord& op, Unit& unit) const {
    std::vector<bool> workspaces(hidden_.workspaces.size());
    std::vector<bool> generators(hidden_.generators.size(), draws_numbers(op));
    for (const std::uint32_t node : unit.nodes) {
      const bool readable = for_each_touched(graph_.nodes()[node], [&](ByteSpan bytes) {
        workspaces_.for_each_overlapping(bytes, [&](std::size_t i) { workspaces[i] = true; });
        generators_.for_each_overlapping(bytes, [&](std::size_t i) { generators[i] = true; });
      });
      if (readable) continue;
      workspaces.assign(workspaces.size(), true);
      generators.assign(generators.size(), true);
    }
    const auto add_spans = [&](const std::vector<ByteSpan>& spans, const std::vector<bool>& used, Memory memory) {
      for (std::size_t i = 0; i < spans.size(); ++i) {
        if (!used[i] || spans[i].empty()) continue;
        unit.accesses.push_back({.bytes = spans[i],
                                 .write = memory == Memory::workspace,
                                 .memory = memory,
                                 .owner = reinterpret_cast<const void*>(spans[i].begin)});
      }
    };
    add_spans(hidden_.workspaces, workspaces, Memory::workspace);
    add_spans(hidden_.generators, generators, Memory::generator);
  }

  // Note [Audit of operators that are not torch's]
  // Whoever wrote such an operator wrote its schema too, and may have forgotten a mark or an argument. Its kernels may
  // point only into what the schema tells: an address in other memory that the step uses makes it a barrier. An address
  // near that memory, but in none of it, may be a buffer of the library's own, which every call of it uses: operators
  // with such addresses are ordered among each other. A kernel that torch.compile wrote has no such library: what is
  // near there are its numbers, since some allocations of CUDA's lie at low addresses.
  [[nodiscard]] std::string audit(Unit& unit) {
    std::vector<ByteSpan> declared;
    for (const Access& access : unit.accesses) declared.push_back(access.bytes);
    const SpanIndex own(merged(std::move(declared)));
    const SpanIndex& all = step_memory();
    const bool has_library = !is_compiled_kernel(trace_, trace_.ops()[unit.op]);
    bool has_own_buffer = false;
    for (const std::uint32_t node : unit.nodes) {
      std::uintptr_t stray = 0;
      const bool readable = for_each_touched(graph_.nodes()[node], [&](ByteSpan bytes) {
        if (own.contains(bytes)) return;
        if (all.overlaps(bytes)) stray = bytes.begin;
        has_own_buffer = has_own_buffer || (has_library && all.overlaps(surroundings(bytes)));
      });
      if (!readable) return fmt::format("the arguments of {} cannot be read", name_of(node));
      if (stray != 0) return fmt::format("{} points to {:#x}, which is in none of its arguments", name_of(node), stray);
    }
    if (has_own_buffer) {
      unit.accesses.push_back(own_buffer());
      unit.writes_unknown = true;
    }
    return "";
  }

  // Where allocations of one device lie together; numbers are rarely that near.
  static ByteSpan surroundings(ByteSpan bytes) {
    constexpr std::uintptr_t kNear = std::uintptr_t{1} << 38U;
    return {.begin = bytes.begin - std::min(bytes.begin, kNear),
            .end = bytes.end + std::min(UINTPTR_MAX - bytes.end, kNear)};
  }

  // One address stands for the buffers of all libraries.
  static Access own_buffer() {
    static const char buffer = 0;
    const auto address = reinterpret_cast<std::uintptr_t>(&buffer);
    return {.bytes = {address, address + 1}, .write = true, .memory = Memory::workspace, .owner = &buffer};
  }

  // All memory that the step is known to use.
  const SpanIndex& step_memory() {
    if (step_memory_) return *step_memory_;
    std::vector<ByteSpan> spans;
    const auto add_all = [&](const std::vector<Access>& accesses) {
      for (const Access& access : accesses) spans.push_back(access.bytes);
    };
    for (const auto& accesses : accesses_) add_all(accesses);
    for (const KnownNodes& known : known_) add_all(known.accesses);
    return step_memory_.emplace(merged(std::move(spans)));
  }

  const OpTrace& trace_;
  const GraphTopology& graph_;
  const HiddenMemory& hidden_;
  std::span<const KnownNodes> known_;
  bool split_kernels_;

  std::vector<Maker> makers_;                  // by node
  std::vector<std::vector<Access>> accesses_;  // by operation; without hidden memory
  bool knows_scratch_ = false;                 // blocks were recorded
  std::vector<int> op_runs_, known_runs_;      // runs of nodes
  std::optional<c10::Device> device_;          // of the step
  SpanIndex workspaces_, generators_;
  std::optional<SpanIndex> step_memory_;
  std::vector<Unit> units_;
};

}  // namespace

StepUnits units_of(const OpTrace& trace, const GraphTopology& graph, const HiddenMemory& hidden,
                   std::span<const KnownNodes> known, bool split_kernels) {
  return GraphUnits(trace, graph, hidden, known, split_kernels).build();
}

}  // namespace pianola::parallel
