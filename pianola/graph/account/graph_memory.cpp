#include <pianola/graph/account/graph_memory.hpp>

#include <pianola/core/byte_span.hpp>
#include <pianola/graph/account/block_picture.hpp>
#include <pianola/graph/allocator_settings.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/graph_impl.hpp>
#include <pianola/graph/living_graphs.hpp>
#include <pianola/memory/allocator_model.hpp>
#include <pianola/memory/offset_plan.hpp>

#include <fmt/format.h>

#include <utility>

namespace pianola {

graph::AccountedGraph Graph::Impl::memory() const {
  graph::AccountedGraph graph;
  graph.memory.device = device;
  graph.memory.inputs = result->input_bytes;
  backend->account(graph.memory);
  graph.blocks = result->blocks;
  graph.trace = result->trace;
  graph.segments = backend->pool().state()->segments();
  graph.inputs = result->inputs;
  return graph;
}

namespace graph {

GraphMemory described(AccountedGraph graph) {
  GraphMemory memory = std::move(graph.memory);
  if (graph.trace == nullptr) return memory;
  const bool is_cpu = memory.device.is_cpu();
  BlockPicture seen = is_cpu ? picture_of(graph.blocks, *graph.trace)
                             : picture_in(graph.segments, std::move(graph.blocks), *graph.trace);
  memory.blocks = seen.lives.size();
  memory.handed_out = seen.handed_out;
  memory.at_most = seen.at_most;
  memory.left = seen.left;
  memory.peak_place = std::move(seen.peak_place);
  memory.at_peak = std::move(seen.at_peak);
  memory.picture = std::move(seen.picture);
  memory.picture.title = fmt::format("Memory of a graph of {} operations on {}", graph.trace->ops().size(),
                                     is_cpu ? "the CPU" : memory.device.str());
  if (is_cpu) {
    memory.picture.places = memory::plan_offsets(seen.lives);
    memory.picture.pool = memory::pool_bytes(seen.lives, allocator_settings());
  }
  return memory;
}

LivingGraphs& LivingGraphs::of_this_process() {
  static auto* const all = new LivingGraphs;
  return *all;
}

void LivingGraphs::add(const void* graph, c10::Device device, std::function<std::optional<AccountedGraph>()> account) {
  const std::lock_guard lock(mutex_);
  all_.push_back({.graph = graph, .number = ++captures_, .device = device, .account = std::move(account)});
}

void LivingGraphs::remove(const void* graph) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [&](const One& one) { return one.graph == graph; });
}

std::vector<AccountedGraph> LivingGraphs::on(c10::Device device) {
  const std::lock_guard lock(mutex_);
  std::vector<AccountedGraph> graphs;
  for (const One& one : all_) {
    if (one.device != device) continue;
    std::optional<AccountedGraph> graph = one.account();
    if (!graph) continue;
    graph->memory.number = one.number;
    graphs.push_back(*std::move(graph));
  }
  return graphs;
}

}  // namespace graph

std::vector<GraphMemory> memory_of_graphs(c10::Device device) {
  std::vector<GraphMemory> memory;
  std::vector<ByteSpan> inputs;  // of those before
  for (graph::AccountedGraph& graph : graph::LivingGraphs::of_this_process().on(graph::usable_device(device))) {
    graph.memory.shared_inputs = total_bytes(graph.inputs) - total_bytes(without(graph.inputs, inputs));
    inputs.insert(inputs.end(), graph.inputs.begin(), graph.inputs.end());
    inputs = merged(std::move(inputs));
    memory.push_back(described(std::move(graph)));
  }
  return memory;
}

Report GraphMemory::report() const {
  Report report("Memory of a captured graph");
  report.fact("device", "device", device.str())
      .fact("pool_bytes", "pool", pool.bytes, "bytes")
      .fact("held_bytes", "held by tensors", pool.held, "bytes")
      .fact("scratch_bytes", "scratch", pool.scratch, "bytes")
      .fact("fragment_bytes", "fragments", pool.fragments, "bytes")
      .fact("planned_bytes", "laid out by a plan", planned, "bytes")
      .fact("graphs", "graphs in the pool", pool.graphs)
      .fact("own_bytes", "this graph's", own, "bytes")
      .fact("shared_bytes", "other graphs' as well", shared, "bytes")
      .fact("asleep", "asleep", pool.is_asleep);
  report.fact("executable_bytes", "executable", executable.device, "bytes")
      .fact("executable_host_bytes", "executable, on the host", executable.host, "bytes")
      .fact("shares_executable", "executable shared with other graphs", shares_executable)
      .fact("input_bytes", "inputs", inputs, "bytes")
      .fact("shared_input_bytes", "of these, in earlier graphs' inputs", shared_inputs, "bytes")
      .fact("retained_bytes", "retained, inputs included", retained, "bytes")
      .fact("workspace_bytes", "workspaces of cuBLAS", pool.workspaces, "bytes")
      .fact("lane_workspace_bytes", "of these, for lanes", lane_workspaces, "bytes")
      .fact("kept_for_lanes_bytes", "kept from reuse for lanes", kept_for_lanes, "bytes");
  report.fact("blocks", "blocks handed out", blocks)
      .fact("handed_out_bytes", "bytes of these", handed_out, "bytes")
      .fact("at_most_bytes", "in use at most", at_most, "bytes")
      .fact("left_bytes", "in use at the end", left, "bytes")
      .fact("peak", "most is in use in", peak_place);
  report.table(graph::table_of(at_peak));
  return report;
}

}  // namespace pianola
