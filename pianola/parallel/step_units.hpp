#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/parallel/plan.hpp>
#include <pianola/parallel/unit.hpp>
#include <pianola/trace/op_trace.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pianola {
class GraphTopology;
}

namespace pianola::parallel {

/// Memory that operations use without it being among their arguments.
struct HiddenMemory {
  std::vector<ByteSpan> workspaces;  ///< Each on its own; a node whose arguments point into one reads and writes it.
  std::vector<ByteSpan> generators;  ///< Seeds and offsets on the device, which operations that draw numbers read.
};

/// Nodes that no operation made and whose purpose is known, in the order of the capture; on the critical path as one unit.
struct KnownNodes {
  std::string name;                ///< "copy of an input".
  std::vector<const void*> nodes;  ///< Handles (CUgraphNode).
  std::vector<Access> accesses = {};
  std::string barrier = {};
};

/// The units of a step, or why it has to stay as it is.
struct StepUnits {
  std::vector<Unit> units;
  std::string refusal;  ///< Empty: the units hold all nodes.
  /// Of a step that communicates, the edges that it was captured with: collectives run beside the rest there, so that the
  /// order of the units has to be proved as well.
  std::vector<NodeEdge> captured;
};

/// Takes a captured graph apart into units. Whatever it does not understand becomes a barrier; what cannot be moved at
/// all (several streams, conditional and host nodes ...) is a refusal. Collectives keep their order.
/// @param split_kernels  See ParallelOptions.
StepUnits units_of(const OpTrace& trace, const GraphTopology& graph, const HiddenMemory& hidden,
                   std::span<const KnownNodes> known, bool split_kernels);

/// The same for a tape: a unit for each operation that a replay has to run, whose node is its position in the trace.
StepUnits units_of(const OpTrace& trace);

}  // namespace pianola::parallel
