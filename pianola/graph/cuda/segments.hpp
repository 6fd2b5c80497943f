#pragma once
#include <pianola/cuda/executable.hpp>
#include <pianola/cuda/topology.hpp>
#include <pianola/graph/account/pool_memory.hpp>
#include <pianola/trace/op_trace.hpp>

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pianola::graph {

/// Operations of a captured step, in the order of their calls, as executables of their own.
class Segments {
 public:
  /// The last operation of a segment that reaches to the end of the step.
  static constexpr std::size_t kEnd = std::numeric_limits<std::size_t>::max() - 1;

  /// @param before  Nodes that belong to no segment: what a replay does first.
  /// @param behind  Nodes that the last segment ends with.
  /// @param made    Told what each executable took.
  Segments(CUgraph graph, const OpTrace& trace, std::span<const CUgraphNode> before,
           std::span<const CUgraphNode> behind, std::function<void(ExecutableMemory)> made);

  struct Segment {
    Segment() = default;
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;
    ~Segment();
    [[nodiscard]] CUgraphNode node(CUgraphNode captured) const { return nodes.at(captured); }

    std::size_t first = 0, last = 0;
    CUgraph graph = nullptr;
    Executable executable;  // empty where no node is of these operations
    std::unordered_map<CUgraphNode, CUgraphNode> nodes;
    std::uint64_t given_at = 0;
  };
  /// Whether a node that may read or write memory, such as a kernel, a copy or a graph inside of the graph, is no operation's: it was
  /// launched by itself.
  [[nodiscard]] bool any_of_no_operation();
  /// Made when it is first asked for. @throws DeviceError
  [[nodiscard]] Segment& get(std::size_t first, std::size_t last);

  /// Until make_executables(); nobody asks for a segment meanwhile.
  void drop_executables() noexcept;
  /// As they are captured. @return  What they take. @throws OutOfMemoryError, DeviceError
  ExecutableMemory make_executables();

 private:
  void read();
  void make(Segment& segment) const;
  static ExecutableMemory instantiate(Segment& segment);

  CUgraph graph_;
  std::vector<std::pair<CUgraphNode, std::size_t>> known_;  // nodes, and where they lie
  std::vector<CUgraphNode> nodes_;                          // all, after the first get()
  std::vector<std::size_t> places_;                         // of each
  bool any_of_none_ = false;
  std::list<Segment> segments_;
  std::function<void(ExecutableMemory)> made_;
};

}  // namespace pianola::graph
