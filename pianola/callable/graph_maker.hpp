#pragma once
#include <pianola/callable/call.hpp>
#include <pianola/callable/captured_call.hpp>
#include <pianola/callable/input_buffers.hpp>
#include <pianola/callable/leaf_set.hpp>
#include <pianola/callable/observation.hpp>
#include <pianola/callable/signature_cache.hpp>
#include <pianola/callable/step_graph.hpp>
#include <pianola/core/one_call.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/graph/stream_order.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace pianola::callable {

// Note [Memory of captures]
// Graphs without a backward pass need their memory only while they are replayed, and results are copied out at once, or may
// be overwritten by the next call. So all of them share one pool per device: it grows with the largest signature, not with
// their number. What has to outlive the replays of other graphs is kept apart: the gradients that a step leaves, and results
// that are not copied, are put where no graph captured earlier has its scratch (PoolState::reserve_used_memory). The
// activations of a call that waits for its backward pass would have to be kept from all later captures as well, which leaves
// nothing to share; such calls have a pool each, and evicting one returns its memory to the device.
// A whole training iteration leaves p.grad as it made it, so that nobody looks at the gradients of an earlier one; but a
// validation iteration may run between backward and optimizer. So the captures of one of these functions reuse each other's
// memory, as long as no other one has captured; from then on, and in a pool of the caller's, which may hold other graphs, they
// are kept apart as well.
// Where memory is planned, the plan says what is a result and what is scratch, which then lies in that of other graphs all the same
// (PoolState::reserve_for_results). A recording that holds more at its end than the plan's run did is made again without that. Callables
// record without such a run: torch's allocator lays their blocks out. What each reservation keeps clear of is in Note [What a capture keeps
// clear of], graph/cuda/pool_clearance.hpp.

/// A captured call, and what belongs to it.
struct CachedGraph {
  /// @throws GuardError, ReplayError  As CapturedCall::replay().
  [[nodiscard]] SignatureCache::Result replay(std::span<const at::Tensor> inputs);

  std::unique_ptr<CapturedCall> call = {};
  std::shared_ptr<const void> structure = {};  ///< Capturable::structure.
  c10::Device device;
  StepGraph* unchanging = nullptr;  ///< `call`, if its results are given out as the same tensors each time: these.
  std::shared_ptr<const std::vector<at::Tensor>> results = {};
};

/// Captures the calls of one cache.
class GraphMaker {
 public:
  /// What a capture builds on.
  struct Source {
    std::span<const at::Tensor> inputs;                            ///< That are copied.
    const Observation& observation;                                ///< Of the last warm-up call.
    const ForwardGradients& gradients;                             ///< What all of them did to gradients.
    bool is_adopted;                                               ///< That was a call with other shapes.
    bool is_step;                                                  ///< Captured whole.
    bool checks_reads = false;                                     ///< Replays do.
    LeafSet own_gradients = {};                                    ///< A step's: see StepGraph.
    bool shares_gradients = false, shares_inputs = false;          ///< See Note [Gradients that are added up].
    std::vector<std::vector<std::int64_t>> gradient_strides = {};  ///< See CallableOptions.
    bool shares_scratch = true;                                    ///< Where memory is planned.
    bool shares_input_memory = true;                               ///< See Note [Static inputs that graphs share].
    std::size_t function;
    std::span<const graph::NumberSample> samples = {};  ///< Of calls with other numbers among their arguments.
  };

  /// While it lives, captures are made ahead of the call that replays them.
  class Ahead {
   public:
    explicit Ahead(GraphMaker& maker) : maker_(maker) { maker_.is_ahead_ = true; }
    Ahead(const Ahead&) = delete;
    Ahead& operator=(const Ahead&) = delete;
    ~Ahead() { maker_.is_ahead_ = false; }

   private:
    GraphMaker& maker_;
  };

  /// @param order  Of the replays of all that it makes.
  GraphMaker(const CacheOptions& options, graph::StreamOrders& orders);

  /// @throws whatever keeps the call from being captured; all is as before then.
  [[nodiscard]] CachedGraph make(Call& call, const Source& source);
  /// Where make() threw: what a reason has to add, if the function had begun to run. Empty where it had not.
  [[nodiscard]] std::string note_of_second_run() const;
  /// Whether make() runs, on whatever thread.
  [[nodiscard]] bool is_making() const noexcept { return making_.is_running(); }
  /// Of the pools that graphs share.
  [[nodiscard]] std::size_t pool_bytes() const;
  [[nodiscard]] InputBuffers& input_buffers() noexcept { return buffers_; }

 private:
  struct SharedPool {
    GraphPoolRef pool;
    std::unordered_set<std::size_t> functions = {};  // that have captured into it
  };

  [[nodiscard]] CachedGraph try_to_make(Call& call, const Source& source);
  std::unique_ptr<CapturedCall> make_callable(const Callable& callable, const Source& source, Call& call);
  std::unique_ptr<StepGraph> make_step(const Callable& callable, const Source& source, Call& call);
  [[nodiscard]] InputBuffers* buffers_for(const Source& source);
  [[nodiscard]] SharedPool& shared_pool(c10::Device device);
  void drop_unused_pools() noexcept;  // that nobody else has: no graph, nor the caller
  [[nodiscard]] std::shared_ptr<void> reserve(const SharedPool& shared, const Source& source) const;

  const CacheOptions& options_;
  graph::StreamOrders& orders_;
  OneCall making_;
  bool is_ahead_ = false;
  std::shared_ptr<bool> has_run_ = std::make_shared<bool>(false);  // the function, in the latest make()
  std::unordered_map<c10::Device, SharedPool> pools_;
  InputBuffers buffers_;
};

}  // namespace pianola::callable
