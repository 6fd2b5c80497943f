#pragma once
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/decide/work_parts.hpp>

#include <array>

namespace pianola::profiling {

// Note [Memory of a scope]
// The pool of a graph grows until it holds all that is allocated inside of the graph, and stays so: activations, scratch,
// gradients. Blocks that were made before do not count although they are freed inside, as old gradients are: what replaces
// them is made in the pool. What is freed inside is used again inside, but for each layer as a callable of its own: then
// activations stay, so that layers may run in any order, and backward passes share their scratch with forward passes.
//
//   whole iteration       all blocks
//   without optimizer     all blocks but the optimizer's
//   forward and backward  the blocks of forward and backward passes
//   each layer            activations + the larger of scratch and share * peak of the backward pass
//
// The first three are sequences of blocks: pool_bytes() runs them through a model of the allocator, so that fragments
// count. Of layers there are sums alone, in whole segments. `share` is that of the layers in the forward passes. Blocks
// belong to the part whose ranges are open where they are made. Where nothing names the forward pass, all but the
// optimizer's counts to it.
//
//   inputs                of callables: what is copied from the host to the device in an iteration, once more
//   executables           kernels, copies and memsets inside * node_bytes
//
// Captures take pools and executables of what the driver has left, and inputs of torch's allocator: see memory/capture_room.hpp.
//
// Not seen: static copies of inputs that lie on the device already, and those between layers; workspaces
// of cuBLAS; fragments of layers; blocks that other streams use, which are free only after the capture.

/// In the order of GraphScope, of the iteration whose duration is the median.
[[nodiscard]] std::array<ScopeMemory, kGraphScopes> scope_memory(const Timeline& timeline, const Analysis& analysis,
                                                                 const WorkParts& parts, const MachineModel& model);

}  // namespace pianola::profiling
