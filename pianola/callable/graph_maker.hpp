#pragma once
#include <pianola/callable/captured_call.hpp>
#include <pianola/callable/graph_bank.hpp>
#include <pianola/callable/graphed_options.hpp>
#include <pianola/callable/observation.hpp>
#include <pianola/graph/pool.hpp>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace pianola::callable {

// Note [Pools of a bank]
// Graphs without a backward pass need their memory only while they are replayed, and results are copied out at once. So
// all of them share one pool per device: it grows with the largest signature, not with their number. What has to
// outlive the replays of other graphs is kept apart: the gradients that a step leaves, and results that are not copied,
// are put where no graph captured earlier has its scratch (PoolState::reserve_used_memory). The activations of a call
// that waits for its backward pass would have to be kept from all later captures as well, which leaves nothing to
// share; such calls have a pool each, and evicting one returns its memory to the device.

/// A captured call, and what belongs to it.
struct BankGraph {
  std::unique_ptr<CapturedCall> call;
  std::shared_ptr<const void> structure;  ///< Capturable::structure.
  c10::Device device;
};

/// The same, and notes that it was run.
[[nodiscard]] Callable noting_runs(const Callable& callable, std::shared_ptr<bool> has_run);
/// What the reason of a failed capture adds where the function was run in it; empty where it was not.
[[nodiscard]] std::string note_of_second_run(bool has_run);

/// Captures the calls of one bank.
class GraphMaker {
 public:
  explicit GraphMaker(const GraphedOptions& options) : options_(options) {}

  /// @throws whatever keeps the call from being captured; all is as before then.
  [[nodiscard]] BankGraph make(BankCall& call, std::span<const at::Tensor> inputs, const Observation& observation);
  /// Where make() threw: what a reason has to add, if the function had begun to run. Empty where it had not.
  [[nodiscard]] std::string note_of_second_run() const;
  /// Whether make() runs, on whatever thread.
  [[nodiscard]] bool is_making() const noexcept { return is_making_; }

 private:
  std::unique_ptr<CapturedCall> make_callable(const Capturable& capturable, std::span<const at::Tensor> inputs,
                                              const Observation& observation);
  std::unique_ptr<CapturedCall> make_step(const Capturable& capturable, std::span<const at::Tensor> inputs,
                                          const Observation& observation);
  [[nodiscard]] const GraphPoolRef& shared_pool(c10::Device device);

  const GraphedOptions& options_;
  std::atomic<bool> is_making_ = false;
  std::shared_ptr<bool> has_run_ = std::make_shared<bool>(false);  // the function, in the latest make()
  std::unordered_map<c10::Device, GraphPoolRef> pools_;
};

}  // namespace pianola::callable
