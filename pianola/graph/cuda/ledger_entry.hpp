#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/graph/ledger.hpp>
#include <pianola/graph/pool_turn.hpp>
#include <pianola/trace/op_trace.hpp>

#include <vector>

namespace pianola::graph {

/// What the ledger of a pool knows of one graph. All but enter() does nothing where the graph was not entered, as it is without a trace.
class LedgerEntry {
 public:
  /// @param allocated  As PoolLedger::add().
  void enter(PoolTurns& turns, const OpTrace& trace, std::vector<ByteSpan> allocated);
  void leave(PoolTurns& turns) noexcept;

  /// Before a replay. @throws ReplayError  Another graph has overwritten what this one reads of a third.
  void check_reads(const PoolTurn& turn) const {
    if (id_ == 0) return;
    if (const PoolLedger::GraphId culprit = turn.ledger().overwritten_by(id_); culprit != 0) [[unlikely]]
      refuse(culprit);
  }
  /// The graph is replayed now.
  void sign(const PoolTurn& turn) const {
    if (id_ != 0) turn.ledger().sign(id_);
  }

  /// What its capture allocated.
  [[nodiscard]] std::vector<ByteSpan> allocated(PoolTurns& turns) const;
  void account(PoolTurns& turns, GraphMemory& memory) const;

 private:
  [[noreturn]] void refuse(PoolLedger::GraphId culprit) const;

  PoolLedger::GraphId id_ = 0;  // 0: it was not entered
};

}  // namespace pianola::graph
