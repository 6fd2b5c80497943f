#pragma once
#include <pianola/core/error.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/graph/placement.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pianola::graph {

/// Tells whether a tensor from outside that a graph uses was given other memory while the graph's pool slept, as those of a model are that
/// went to the host meanwhile. Its replays would go on with the old memory. One that moves while the pool is awake is CheckMode's matter.
class MovedAsleep {
 public:
  /// From now on until it ends the pool tells it when it goes to sleep. Keeps no tensor alive.
  /// @param names  What people call some of them.
  MovedAsleep(std::shared_ptr<PoolState> pool, const std::vector<at::Tensor>& tensors,
              std::span<const NamedTensor> names);
  MovedAsleep(const MovedAsleep&) = delete;
  MovedAsleep& operator=(const MovedAsleep&) = delete;
  ~MovedAsleep();

  /// Before a replay. The first one behind a resume() looks at each tensor; where all are in place, those that follow do not.
  [[nodiscard]] bool intact() noexcept {
    return !slept_.load(std::memory_order_acquire) || pool_->is_asleep() || look();
  }
  /// Why a replay is refused. Only where not intact().
  [[nodiscard]] Diagnosis offence() const;

 private:
  struct Watched {
    trace::WeakTensor tensor;
    const c10::TensorImpl* impl;
    std::string name;  // "'cache', ", where it has one
    Placement placement = {};
    [[nodiscard]] Placement::Change change() const noexcept;
  };

  void note_places();
  [[nodiscard]] bool look() noexcept;

  std::shared_ptr<PoolState> pool_;
  std::vector<Watched> watched_;
  std::atomic<bool> slept_{false};  // and no replay has looked since then
};

}  // namespace pianola::graph
