#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/cuda/topology.hpp>

#include <vector>

namespace pianola::graph {

// Note [Memory of libraries]
// A library may keep memory of its own on the device, a counter that its kernels share, say, which no operation has among
// its arguments and torch's allocator has never seen. Kernels on one stream never notice; on two lanes they would. So each
// word in a kernel's arguments that is an address outside torch's memory is looked up with the driver, and the allocation
// it lies in is ordered like a workspace: whoever points into it waits for the last one who did.

/// The allocations, neither torch's nor handed out to the capture, that nodes of the graph point into. Sorted, each once.
/// @param allocated  That the capture was handed out; in a recording that is dropped not by torch.
std::vector<ByteSpan> library_memory(const GraphTopology& graph, std::vector<ByteSpan> allocated,
                                     const Driver& driver = Driver::get());

}  // namespace pianola::graph
