#pragma once
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/node_set.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola {

enum class CaptureStatus {
  none,         ///< The stream does not capture.
  active,       ///< It captures.
  invalidated,  ///< It captures, but an error has broken the capture: all that remains is to end it.
};

/// Whether `stream` captures: one driver call, cheap enough to ask after each operation. The legacy default stream,
/// which cannot capture, has the status none also where CUDA refuses the question.
///
/// @throws DeviceError  The query failed for another reason, such as an earlier error of a kernel.
[[nodiscard]] CaptureStatus capture_status(CUstream stream, const Driver& driver = Driver::get());

/// Names the capture that is open on `stream`: no other one of this process has it; 0: none.
/// @throws DeviceError  As capture_status().
[[nodiscard]] std::uint64_t capture_id(CUstream stream, const Driver& driver = Driver::get());

/// Tells which nodes were added to a graph since the last call, while it is being captured.
///
///     CaptureFrontier frontier;
///     frontier.advance(stream);                                        // what was there before
///     run(operation);
///     std::span<const CUgraphNode> nodes = frontier.advance(stream);   // what `operation` added
///
/// It walks back from the nodes that the stream's next work would depend on until it meets nodes that it knows. So it
/// sees the work of this stream, and of another one only once this stream has joined it: a node on a forked stream
/// comes with the advance() after the join, or earlier if the forked stream is asked itself. One object serves all
/// streams of a capture, and each node is reported once; a new capture starts afresh by itself.
///
/// Threads:  One call at a time, from any thread.
/// Cost:     Two driver calls, and one per new node.
class CaptureFrontier {
 public:
  explicit CaptureFrontier(const Driver& driver = Driver::get()) : driver_(&driver) {}

  /// The new nodes, each behind those of them that it depends on; empty if the stream does not capture or the capture
  /// is invalidated. Valid until the next call.
  ///
  /// @throws DeviceError  A query failed; which nodes are known is undefined until the next capture.
  std::span<const CUgraphNode> advance(CUstream stream);

  /// The new nodes of all streams of the capture, joined or not: of a library that has streams of its own. Asks the driver
  /// for all nodes of the graph.
  std::span<const CUgraphNode> advance_everywhere(CUstream stream);

  /// Nodes of the capture that were reported so far.
  [[nodiscard]] std::size_t known() const noexcept { return known_.size(); }

 private:
  struct Frame {
    CUgraphNode node;
    std::size_t begin;  // Its dependencies, as positions in dependencies_.
    std::size_t next;
    std::size_t end;
  };

  // The capture's graph; nullptr: there is no capture.
  CUgraph walk_back_from_tips(CUstream stream);
  void walk_back_from(CUgraphNode node);
  void enter(CUgraphNode node);

  const Driver* driver_;
  std::uint64_t capture_id_ = 0;
  NodeSet known_;
  std::vector<CUgraphNode> fresh_;
  // Scratch of the walk, kept for its memory.
  std::vector<Frame> path_;
  std::vector<CUgraphNode> dependencies_;
  std::vector<CUgraphEdgeData> edge_data_;
  std::vector<CUgraphNode> tips_;
};

}  // namespace pianola
