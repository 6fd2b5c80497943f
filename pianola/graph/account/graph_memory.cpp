#include <pianola/graph/account/graph_memory.hpp>

#include <pianola/graph/account/block_picture.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/graph_impl.hpp>
#include <pianola/graph/living_graphs.hpp>
#include <pianola/memory/allocator_model.hpp>
#include <pianola/memory/offset_plan.hpp>

#include <fmt/format.h>

#include <utility>

namespace pianola {

GraphMemory Graph::Impl::memory() const {
  GraphMemory memory;
  memory.device = device;
  memory.inputs = result->input_bytes;
  backend->account(memory);
  if (!result->trace) return memory;
  const std::vector<ByteSpan> segments = backend->pool().state()->segments();
  graph::BlockPicture seen = device.is_cpu() ? graph::picture_of(result->blocks, *result->trace)
                                             : graph::picture_in(segments, result->blocks, *result->trace);
  memory.blocks = seen.lives.size();
  memory.handed_out = seen.handed_out;
  memory.at_most = seen.at_most;
  memory.left = seen.left;
  memory.peak_place = std::move(seen.peak_place);
  memory.at_peak = std::move(seen.at_peak);
  memory.picture = std::move(seen.picture);
  memory.picture.title = fmt::format("Memory of a graph of {} operations on {}", result->trace->ops().size(),
                                     device.is_cpu() ? "the CPU" : device.str());
  if (device.is_cpu()) {
    memory.picture.places = memory::plan_offsets(seen.lives);
    memory.picture.pool = memory::pool_bytes(seen.lives);
  }
  return memory;
}

namespace graph {

LivingGraphs& LivingGraphs::of_this_process() {
  static auto* const all = new LivingGraphs;
  return *all;
}

void LivingGraphs::add(const void* graph, c10::Device device, std::function<GraphMemory()> memory) {
  const std::lock_guard lock(mutex_);
  all_.push_back({.graph = graph, .device = device, .memory = std::move(memory)});
}

void LivingGraphs::remove(const void* graph) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [&](const One& one) { return one.graph == graph; });
}

std::vector<GraphMemory> LivingGraphs::memory_on(c10::Device device) {
  const std::lock_guard lock(mutex_);
  std::vector<GraphMemory> memory;
  for (const One& one : all_) {
    if (one.device == device) memory.push_back(one.memory());
  }
  return memory;
}

}  // namespace graph

std::vector<GraphMemory> memory_of_graphs(c10::Device device) {
  return graph::LivingGraphs::of_this_process().memory_on(graph::usable_device(device));
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
      .fact("input_bytes", "inputs", inputs, "bytes")
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
