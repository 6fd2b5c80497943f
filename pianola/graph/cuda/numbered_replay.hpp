#pragma once
#include <pianola/cuda/executable.hpp>
#include <pianola/cuda/rewired_graph.hpp>
#include <pianola/graph/account/pool_memory.hpp>
#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/cuda/launcher.hpp>
#include <pianola/graph/cuda/numbered_calls.hpp>
#include <pianola/graph/cuda/segments.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/core/Device.h>
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pianola::graph {

/// Replays of one graph whose operations may be given other numbers, or are run by hand: gives them to its executable, and launches
/// the graph in pieces, around the operations that it has to run itself. See Note [Numbers in CUDA graphs].
class NumberedReplay {
 public:
  /// Arguments as those of NumberedCalls. @param wanted  Empty: none but islands.
  NumberedReplay(c10::Device device, std::function<bool(std::size_t operation)> wanted,
                 std::function<bool(std::uintptr_t address)> is_in_pool)
      : device_(device),
        any_wanted_(static_cast<bool>(wanted)),
        calls_(device, std::move(wanted), std::move(is_in_pool)) {}

  [[nodiscard]] NumberedCalls& calls() noexcept { return calls_; }
  [[nodiscard]] const NumberedCalls& calls() const noexcept { return calls_; }

  /// The capture has ended; parameters as those of Segments.
  /// @return  Whether replays have anything to do with it. @throws CaptureError  As NumberedCalls::finish().
  [[nodiscard]] bool finish(CUgraph graph, const OpTrace& trace, std::span<const CUgraphNode> before,
                            std::span<const CUgraphNode> behind, std::function<void(ExecutableMemory)> made);
  [[nodiscard]] bool runs_unknown_kernels() { return segments_->any_of_no_operation(); }

  /// Whether the executable of the whole step is ever given any, or launched in pieces.
  [[nodiscard]] bool any() const noexcept { return !calls_.empty(); }
  /// The executable of the whole step is new, and as captured.
  void start() noexcept { given_at_ = 0; }
  /// Those of pieces; see Segments. The capture has ended.
  void drop_executables() noexcept { segments_->drop_executables(); }
  ExecutableMemory make_executables() { return segments_->make_executables(); }
  /// Replays run the graph as captured, and no rewired one.
  void forget_rewired() noexcept { rewired_nodes_.clear(); }

  /// A call begins: what failed in the last one is forgotten.
  void begin_call() noexcept { failed_ = 0; }
  [[nodiscard]] bool are_given() const noexcept { return calls_.are_given(given_at_); }
  /// Gives the numbers to the executable of the whole step; what it could not be given is to be run by hand then.
  /// @param rewired  What it was made from; nullptr: the graph as captured.
  void give(CUgraphExec executable, const RewiredGraph* rewired);
  /// Whether a replay has to run operations itself.
  [[nodiscard]] bool is_in_pieces() const noexcept { return !calls_.by_hand().empty(); }

  /// Runs the operations from `first` to `last`, those that have to be run by hand in their places.
  /// @param holds_scratch  What lies between its pieces other graphs of the pool would overwrite.
  void play(Launcher& launcher, CudaPool& pool, std::size_t first, std::size_t last, bool holds_scratch);
  /// Operation that was run by hand and threw in the last replay; 0: none did.
  [[nodiscard]] std::size_t failed() const noexcept { return failed_; }

 private:
  [[nodiscard]] std::vector<Segments::Segment*> pieces(std::size_t first, std::size_t last);
  void run_by_hand(const Launcher& launcher, std::size_t operation);

  c10::Device device_;
  bool any_wanted_;  // by who has the graph: it may replay parts of it
  std::size_t failed_ = 0;
  std::uint64_t given_at_ = 0;  // to the executable
  NumberedCalls calls_;
  std::optional<Segments> segments_;                            // after the capture
  std::unordered_map<CUgraphNode, CUgraphNode> rewired_nodes_;  // by those of the capture
};

}  // namespace pianola::graph
