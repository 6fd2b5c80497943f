#pragma once
#include <pianola/cuda/executable.hpp>
#include <pianola/cuda/rewired_graph.hpp>
#include <pianola/graph/account/pool_memory.hpp>
#include <pianola/graph/backend.hpp>
#include <pianola/graph/cuda/blas_workspaces.hpp>
#include <pianola/graph/cuda/branch_budget.hpp>
#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/cuda/generator_clock.hpp>
#include <pianola/graph/cuda/input_copies.hpp>
#include <pianola/graph/cuda/launcher.hpp>
#include <pianola/graph/cuda/reuse_delay.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/parallel/branch_info.hpp>
#include <pianola/parallel/lane_chart.hpp>
#include <pianola/parallel/plan.hpp>
#include <pianola/parallel/step_units.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/core/Storage.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::graph {

/// All that CaptureOptions::branches adds to one CUDA graph: memory to spread out over while it is captured, then the
/// graph rebuilt from its true dependencies, then the choice between the two.
class Branches {
 public:
  /// Before the capture begins: makes the pool's workspaces.
  Branches(const CaptureOptions& options, CudaPool& pool, c10::cuda::CUDAStream stream);

  /// The capture has begun: who takes part in it. Not called where no trace is recorded.
  /// @param is_planned  A plan says what memory is used again, and when. Else that is delayed.
  std::vector<trace::OpObserver*> observers(const AllocationWatch& allocations, bool is_planned);
  /// The last operation is recorded: everything is as torch had it, and memory that was held is free.
  void stop_recording();

  /// What the capture came to.
  struct Captured {
    CUgraph graph;
    const OpTrace* trace;  ///< nullptr: the graph stays as it is.
    std::vector<torch_abi::DrawWords> generators;
    std::vector<CUgraphNode> advance;  ///< Its last nodes, which move the generators on.
    const InputCopies* copies;         ///< Its first nodes.
    std::vector<ByteSpan> allocated;   ///< In its pool, all of it.
    bool instantiate;
  };
  /// Its lanes; nullopt: it has none, and info() says why. @throws  What reading the graph does.
  [[nodiscard]] std::optional<parallel::Plan> plan(const Captured& captured);
  /// Rebuilds the graph and proves it. Whether or not that succeeds, the captured graph is as it was.
  void rebuild(const Captured& captured);

  /// What a trial of a captured graph needs.
  struct Trial {
    Launcher& launcher;
    const Executable& serial;  ///< Of the graph as captured.
    const OpTrace* trace;
    std::span<const c10::Storage> kept;  ///< That the step uses.
    const Backend::SaveStorage& save;    ///< Told what a launch writes: the caller puts it back.
  };
  /// Settles whether replays run the rebuilt graph, where there is one: by a trial on the current stream, or, where that would tell
  /// nothing or do harm, by whether it was asked for. @return  Whether it was taken now.
  [[nodiscard]] bool choose(const Trial& trial);
  /// Replays are to run the graph as captured after all. @return  The copies of its inputs.
  [[nodiscard]] InputCopies give_up(std::string why);

  /// The rebuilt graph, where it was taken; nullptr else.
  [[nodiscard]] const RewiredGraph* graph() const noexcept { return info_.rebuilt ? &rebuilt_->graph : nullptr; }
  [[nodiscard]] Executable take_executable() noexcept { return std::move(rebuilt_->executable); }
  /// What the executable took.
  [[nodiscard]] ExecutableMemory executable_memory() const noexcept { return rebuilt_->executable_memory; }
  /// @return  The copies of inputs of the rebuilt graph, for those of the graph as captured.
  [[nodiscard]] InputCopies exchange_copies(InputCopies captured) noexcept {
    return std::exchange(rebuilt_->copies, std::move(captured));
  }

  [[nodiscard]] const BranchInfo& info() const noexcept { return info_; }
  /// Of ParallelOptions, less the workspaces.
  [[nodiscard]] std::size_t memory_limit() const noexcept {
    return options_.memory_limit - std::min(options_.memory_limit, info_.workspace_bytes);
  }
  /// nullptr where the step was not planned.
  [[nodiscard]] const parallel::LaneChart* chart() const noexcept { return chart_ ? &*chart_ : nullptr; }

 private:
  struct Rebuilt {
    RewiredGraph graph;
    Executable executable;  // empty: not instantiated yet
    InputCopies copies;
    ExecutableMemory executable_memory;
  };

  [[nodiscard]] std::string why_no_trial() const;
  [[nodiscard]] std::string why_no_trial(long uses_of_pool) const;
  bool try_against(const Executable& serial);
  void decide_untimed(std::string why);
  void reserve_workspaces();
  void make(const Captured& captured, const GraphTopology& topology, const parallel::Plan& plan);
  [[nodiscard]] std::optional<parallel::Plan> plan(const Captured& captured, const GraphTopology& topology);
  [[nodiscard]] parallel::StepUnits find_units(const Captured& captured, const GraphTopology& topology) const;

  ParallelOptions options_;
  BranchBudget budget_;  // of lanes that nobody asked for
  bool has_run_;         // with the inputs as they are
  bool instantiates_;
  BranchInfo info_;
  CudaPool& pool_;
  c10::cuda::CUDAStream stream_;
  std::size_t colours_ = 0;
  std::string unknown_writer_;                    // a unit of the step that may write more than is known
  std::string why_unknown_;                       // empty where there is no sentence for it
  std::string counted_index_, foreign_operator_;  // operators that a trial nobody asked for had better not repeat
  bool communicates_ = false;
  std::unique_ptr<WorkspaceTurns> turns_;
  std::unique_ptr<ReuseDelay> delay_;
  std::optional<Rebuilt> rebuilt_;
  std::optional<parallel::LaneChart> chart_;
};

}  // namespace pianola::graph
