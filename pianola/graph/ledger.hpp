#pragma once
#include <pianola/core/byte_span.hpp>

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace pianola::graph {

// Note [Pool ledger]
// Graphs of one pool reuse each other's freed bytes. That is harmless unless a graph B reads a result of another graph A
// and a third one, C, was captured after that result was freed and got its bytes: replaying A, C, B feeds garbage to B.
// The ledger cuts the bytes that are read across graphs into cells and keeps, per cell, which graph wrote it last. A
// replay first checks that each cell it reads was last written by the graph that it was captured to read from, then
// signs the cells that its own allocations cover. Both lists belong to the graph: the cost of a replay depends neither
// on how many graphs there are nor on how much they allocate, and is nothing where no result crosses graphs.
// Only allocations count as overwriting: a graph that writes into another's live result does so on purpose.

/// Who wrote last what graphs of one pool read of each other. One caller at a time: see PoolTurn.
class PoolLedger {
 public:
  using GraphId = std::uint32_t;

  /// Enters a captured graph.
  /// @param allocated  Every block that its capture allocated in the pool, scratch included.
  /// @param reads      Bytes of the pool that it reads and did not allocate.
  GraphId add(std::vector<ByteSpan> allocated, const std::vector<ByteSpan>& reads);
  void remove(GraphId graph);

  /// Whether an earlier graph allocated this byte.
  [[nodiscard]] bool owns(std::uintptr_t address) const;

  /// How many graphs are entered.
  [[nodiscard]] std::size_t graphs() const noexcept { return entries_.size(); }

  /// All bytes that a capture allocated, sorted and disjoint.
  [[nodiscard]] std::vector<ByteSpan> allocated() const;
  /// The same of one graph.
  [[nodiscard]] const std::vector<ByteSpan>& allocated_by(GraphId graph) const { return entries_.at(graph).allocated; }
  /// The same of all others.
  [[nodiscard]] std::vector<ByteSpan> allocated_beside(GraphId graph) const;

  /// The graph that has overwritten something this one reads, or 0: the replay is safe.
  [[nodiscard]] GraphId overwritten_by(GraphId graph) const;
  /// Notes that the graph is replayed now.
  void sign(GraphId graph);

 private:
  struct Cell {
    ByteSpan bytes;
    GraphId last_writer;  // 0: no replay has written it yet
  };
  struct Read {
    ByteSpan bytes;
    GraphId producer;
  };
  struct CellRead {
    std::size_t cell;
    GraphId producer;
  };
  struct Entry {
    std::vector<ByteSpan> allocated;  // sorted, disjoint
    std::vector<Read> reads;
    std::vector<CellRead> cells_read;        // derived from reads
    std::vector<std::size_t> cells_written;  // derived from allocated
    std::uint64_t signed_at = 0;             // by the ledger's clock; 0: never
  };

  [[nodiscard]] std::map<GraphId, std::vector<ByteSpan>> by_producer(std::vector<ByteSpan> open) const;
  [[nodiscard]] GraphId last_signed(const ByteSpan& bytes) const;
  void rebuild_cells();

  std::unordered_map<GraphId, Entry> entries_;
  ByteSpan bounds_ = {.begin = UINTPTR_MAX,
                      .end = 0};  // of all that was ever allocated: rejects most addresses at once
  std::vector<Cell> cells_;       // sorted, disjoint
  GraphId next_ = 1;
  std::uint64_t clock_ = 0;
};

}  // namespace pianola::graph
