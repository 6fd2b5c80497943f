#include <pianola/profile/decide/scope_memory.hpp>

#include <pianola/memory/allocator_model.hpp>
#include <pianola/memory/capture_room.hpp>
#include <pianola/memory/offset_plan.hpp>
#include <pianola/profile/analyse/device_work.hpp>
#include <pianola/profile/analyse/enclosing_ranges.hpp>
#include <pianola/profile/analyse/memory_blocks.hpp>
#include <pianola/profile/decide/range_parts.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace pianola::profiling {
namespace {

struct PartBlock {
  MemoryBlock block;
  Part part = Part::rest;
  std::optional<Nanoseconds> layer_end;  // of the layer inside of which it was made
};

// The outermost of the layers' kind.
std::optional<Nanoseconds> end_of_layer(const Timeline& timeline, std::string_view kind,
                                        std::span<const HostRange* const> open) {
  const auto layer = std::ranges::find_if(
      open, [&](const HostRange* range) { return !kind.empty() && kind_of_module(timeline, *range) == kind; });
  return layer == open.end() ? std::nullopt : std::optional((*layer)->time.end);
}

// Of the typical iteration.
std::vector<MemoryBlock> blocks_of_iteration(const Timeline& timeline, const Analysis& analysis) {
  const auto iteration = static_cast<std::size_t>(&typical_iteration(analysis) - analysis.iterations.data());
  const std::vector<MemoryBlock> all = memory_blocks(timeline, analysis.process, analysis.device);
  const auto own = made_within(all, allocation_spans(timeline, analysis)[iteration]);
  return {own.begin(), own.end()};
}

std::vector<PartBlock> blocks_by_part(const Timeline& timeline, const Analysis& analysis, const WorkParts& parts) {
  std::vector<PartBlock> blocks;
  std::map<std::int64_t, std::vector<Moment>> by_thread;
  for (const MemoryBlock& block : blocks_of_iteration(timeline, analysis)) {
    by_thread[block.thread].push_back({block.made, blocks.size()});
    // Where no range names the optimizer, its kernels do.
    const bool optimizers = parts[Part::optimizer].issued.contains(block.made);
    blocks.push_back({.block = block, .part = optimizers ? Part::optimizer : Part::rest, .layer_end = {}});
  }
  for (const auto& [thread, moments] : by_thread) {
    visit_enclosing(timeline, analysis.process, thread, moments,
                    [&](std::size_t i, std::span<const HostRange* const> open) {
                      blocks[i].part = part_by_ranges(timeline, open).value_or(blocks[i].part);
                      if (blocks[i].part != Part::forward) return;
                      blocks[i].layer_end = end_of_layer(timeline, parts.layers.kind, open);
                    });
  }
  return blocks;
}

template <class Choice>
std::vector<MemoryBlock> chosen(const std::vector<PartBlock>& blocks, Choice choice) {
  std::vector<MemoryBlock> result;
  for (const PartBlock& block : blocks) {
    if (choice(block)) result.push_back(block.block);
  }
  return result;
}

bool outlives_its_layer(const PartBlock& block) { return block.layer_end && block.block.freed > *block.layer_end; }

memory::SegmentBytes bytes_of_layers(const std::vector<PartBlock>& blocks, double share) {
  const memory::SegmentBytes activations = memory::sum_by_segment(chosen(blocks, outlives_its_layer));
  const memory::SegmentBytes scratch = memory::peak_by_segment(
      chosen(blocks, [](const PartBlock& one) { return one.layer_end && !outlives_its_layer(one); }));
  const memory::SegmentBytes backward =
      memory::peak_by_segment(chosen(blocks, [](const PartBlock& one) { return one.part == Part::backward; }));
  memory::SegmentBytes bytes = activations;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto of_layers = static_cast<std::uint64_t>(std::llround(share * static_cast<double>(backward[i])));
    bytes[i] += std::max(scratch[i], of_layers);
  }
  return bytes;
}

bool knows_forward(const WorkParts& parts) { return parts[Part::forward].nodes != 0; }

bool is_inside(GraphScope scope, Part part, const WorkParts& parts) {
  if (scope == GraphScope::iteration) return true;
  if (scope == GraphScope::forward_backward && knows_forward(parts)) {
    return part == Part::forward || part == Part::backward;
  }
  return part != Part::optimizer;
}

std::vector<MemoryBlock> blocks_inside(GraphScope scope, const std::vector<PartBlock>& blocks, const WorkParts& parts) {
  return chosen(blocks, [&](const PartBlock& one) { return is_inside(scope, one.part, parts); });
}

std::uint64_t pool_of(GraphScope scope, const std::vector<PartBlock>& blocks, const WorkParts& parts) {
  if (scope == GraphScope::layers) return memory::in_whole_segments(bytes_of_layers(blocks, parts.layer_share()));
  return memory::pool_bytes(blocks_inside(scope, blocks, parts));
}

memory::CaptureMemory capture_with(std::uint64_t pool, const ScopeMemory& of_scope) {
  return {.of_driver = pool + of_scope.executables, .copies = of_scope.inputs};
}

void judge_room(ScopeMemory& of_scope, const memory::FreeMemory& left) {
  const memory::CaptureMemory capture = capture_with(*of_scope.pool, of_scope);
  of_scope.fits = memory::fits(capture, left);
  of_scope.would_fit = memory::would_fit(capture, left);
  of_scope.verdict = memory::room_verdict(capture, left);
}

std::size_t nodes_inside(GraphScope scope, const WorkParts& parts) {
  if (scope == GraphScope::layers) {
    const double backward = parts.layer_share() * static_cast<double>(parts[Part::backward].nodes);
    return parts.layers.work.nodes + static_cast<std::size_t>(std::llround(backward));
  }
  std::size_t nodes = 0;
  for (const Part part : {Part::forward, Part::backward, Part::optimizer, Part::rest}) {
    if (is_inside(scope, part, parts)) nodes += parts[part].nodes;
  }
  return nodes;
}

// What a graph of an iteration reads is made inside of it, or is static already.
bool copies_inputs(GraphScope scope) { return scope == GraphScope::layers || scope == GraphScope::forward_backward; }

std::uint64_t bytes_from_host(const Timeline& timeline, const Analysis& analysis) {
  const Iteration& iteration = typical_iteration(analysis);
  std::uint64_t bytes = 0;
  for (std::size_t i = iteration.first_work; i < iteration.last_work; ++i) {
    const DeviceWork& work = timeline.work[analysis.order[i]];
    if (copy_direction(timeline, work) == CopyDirection::to_device) bytes += work.bytes;
  }
  return bytes;
}

}  // namespace

std::array<ScopeMemory, kGraphScopes> scope_memory(const Timeline& timeline, const Analysis& analysis,
                                                   const WorkParts& parts, const MachineModel& model) {
  const std::vector<PartBlock> blocks = blocks_by_part(timeline, analysis, parts);
  const std::uint64_t from_host = bytes_from_host(timeline, analysis);
  std::array<ScopeMemory, kGraphScopes> memory;
  for (std::size_t i = 0; i < kGraphScopes; ++i) {
    const auto scope = static_cast<GraphScope>(i);
    if (analysis.memory) memory[i].pool = pool_of(scope, blocks, parts);
    if (copies_inputs(scope)) memory[i].inputs = from_host;
    memory[i].executables = nodes_inside(scope, parts) * model.node_bytes;
    if (!analysis.memory || !analysis.memory->left) continue;
    const memory::FreeMemory& left = *analysis.memory->left;
    judge_room(memory[i], left);
    if (*memory[i].would_fit || scope == GraphScope::layers) continue;  // those have pools of their own
    const std::uint64_t planned = memory::plan_offsets(blocks_inside(scope, blocks, parts)).bytes;
    if (memory::would_fit(capture_with(planned, memory[i]), left)) memory[i].planned = planned;
  }
  return memory;
}

}  // namespace pianola::profiling
