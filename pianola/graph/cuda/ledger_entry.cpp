#include <pianola/graph/cuda/ledger_entry.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/resized_storage.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <unordered_set>
#include <utility>

namespace pianola::graph {

void LedgerEntry::enter(PoolTurns& turns, const OpTrace& trace, std::vector<ByteSpan> allocated) {
  std::vector<ByteSpan> reads;
  std::unordered_set<const void*> resized;  // storages from before, with memory of this capture
  for (const OpRecord& op : trace.ops()) {
    const bool resizes = trace.name(op) == trace::kResizesStorage;
    for (const TensorRecord& input : trace.inputs(op)) {
      if (resizes) resized.insert(input.storage);
      if (input.made_in_step || resized.contains(input.storage)) continue;
      if (!input.device.is_cuda() || input.span_bytes == 0) continue;
      const auto begin = reinterpret_cast<std::uintptr_t>(input.address);
      if (PoolTurn(turns).ledger().owns(begin)) reads.push_back({.begin = begin, .end = begin + input.span_bytes});
    }
  }
  id_ = PoolTurn(turns).ledger().add(std::move(allocated), reads);
}

void LedgerEntry::leave(PoolTurns& turns) noexcept {
  if (id_ != 0) PoolTurn(turns).ledger().remove(std::exchange(id_, 0));
}

std::vector<ByteSpan> LedgerEntry::allocated(PoolTurns& turns) const {
  if (id_ == 0) return {};
  return PoolTurn(turns).ledger().allocated_by(id_);
}

void LedgerEntry::account(PoolTurns& turns, GraphMemory& memory) const {
  if (id_ == 0) return;
  const PoolTurn turn(turns);
  const std::vector<ByteSpan>& own = turn.ledger().allocated_by(id_);
  memory.own = total_bytes(own);
  memory.shared = memory.own - total_bytes(without(own, turn.ledger().allocated_beside(id_)));
}

void LedgerEntry::refuse(PoolLedger::GraphId culprit) const {
  throw ReplayError(
      {.what = fmt::format("graph {} of the pool reads a result of another graph that a replay of graph {} has "
                           "overwritten since it was produced; nothing was launched",
                           id_, culprit),
       .where = "graphs of a pool are numbered in the order of their capture, from 1",
       .fix = fmt::format("replay the graph that produces it again before this one, or capture graph {} in a pool of "
                          "its own",
                          culprit),
       .rule = "PG909"});
}

}  // namespace pianola::graph
