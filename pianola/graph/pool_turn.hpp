#pragma once
#include <pianola/graph/ledger.hpp>
#include <pianola/graph/stream_order.hpp>

#include <mutex>

namespace pianola::graph {

// Note [Graphs of a pool run one after the other]
// Graphs of one pool share scratch memory, results and cuBLAS's workspaces. No two of them may run at once, and what the
// ledger says holds only if the device runs them in the order in which they signed. CUDA runs launches of one executable one
// after the other, whatever their streams; a pool does so for all its graphs. A replay takes its turn: it holds a lock while
// it asks the ledger, launches and signs, and waits on the device for the last replay where that went to another stream. The
// lock is free unless threads share the pool, and the streams differ seldom: a turn costs a bare launch some 20 ns.

/// The order of replays of one pool, or of pools of a family. Threads get at it by a PoolTurn.
class PoolOrder {
 private:
  friend class PoolTurn;
  std::mutex mutex_;
  StreamOrder order_;
};

/// What replays and captures of one pool share.
class PoolTurns {
 public:
  /// @param order  Outlives it.
  explicit PoolTurns(PoolOrder& order) : order_(order) {}

 private:
  friend class PoolTurn;
  PoolOrder& order_;
  PoolLedger ledger_;
};

/// While it lives, no other thread has a turn with the pool, or with another one of its family. Keep it short: no allocation on the device, no Python.
class PoolTurn {
 public:
  explicit PoolTurn(PoolTurns& turns) : lock_(turns.order_.mutex_), turns_(turns) {}

  [[nodiscard]] PoolLedger& ledger() const noexcept { return turns_.ledger_; }
  /// Of the streams that graphs of the pool run on.
  [[nodiscard]] StreamOrder& order() const noexcept { return turns_.order_.order_; }

 private:
  std::lock_guard<std::mutex> lock_;
  PoolTurns& turns_;
};

}  // namespace pianola::graph
