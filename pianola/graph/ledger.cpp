#include <pianola/graph/ledger.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace pianola::graph {
namespace {

bool covers(const std::vector<ByteSpan>& spans, const ByteSpan& bytes) {
  const auto after =
      std::partition_point(spans.begin(), spans.end(), [&](const ByteSpan& span) { return span.end <= bytes.begin; });
  return after != spans.end() && after->overlaps(bytes);
}

}  // namespace

PoolLedger::GraphId PoolLedger::add(std::vector<ByteSpan> allocated, const std::vector<ByteSpan>& reads) {
  const GraphId graph = next_++;
  Entry entry;
  for (const auto& [producer, bytes] : by_producer(merged(reads))) {
    for (const ByteSpan& span : merged(bytes)) entry.reads.push_back({span, producer});
  }
  entry.allocated = merged(std::move(allocated));
  if (!entry.allocated.empty()) {
    bounds_.begin = std::min(bounds_.begin, entry.allocated.front().begin);
    bounds_.end = std::max(bounds_.end, entry.allocated.back().end);
  }
  entries_.emplace(graph, std::move(entry));
  rebuild_cells();
  return graph;
}

void PoolLedger::remove(GraphId graph) {
  entries_.erase(graph);
  rebuild_cells();
}

bool PoolLedger::owns(std::uintptr_t address) const {
  const ByteSpan byte = {.begin = address, .end = address + 1};
  return bounds_.overlaps(byte) && std::any_of(entries_.begin(), entries_.end(),
                                               [&](const auto& entry) { return covers(entry.second.allocated, byte); });
}

std::vector<ByteSpan> PoolLedger::allocated() const {
  std::vector<ByteSpan> all;
  for (const auto& [graph, entry] : entries_) all.insert(all.end(), entry.allocated.begin(), entry.allocated.end());
  return merged(std::move(all));
}

std::vector<ByteSpan> PoolLedger::allocated_beside(GraphId graph) const {
  std::vector<ByteSpan> all;
  for (const auto& [other, entry] : entries_) {
    if (other != graph) all.insert(all.end(), entry.allocated.begin(), entry.allocated.end());
  }
  return merged(std::move(all));
}

PoolLedger::GraphId PoolLedger::overwritten_by(GraphId graph) const {
  for (const CellRead& read : entries_.at(graph).cells_read) {
    const GraphId last = cells_[read.cell].last_writer;
    if (last != 0 && last != read.producer) return last;
  }
  return 0;
}

void PoolLedger::sign(GraphId graph) {
  Entry& entry = entries_.at(graph);
  entry.signed_at = ++clock_;
  for (const std::size_t cell : entry.cells_written) cells_[cell].last_writer = graph;
}

// A result that is alive belongs to the graph that allocated its bytes last.
std::map<PoolLedger::GraphId, std::vector<ByteSpan>> PoolLedger::by_producer(std::vector<ByteSpan> open) const {
  std::vector<GraphId> latest_first;
  for (const auto& [graph, entry] : entries_) latest_first.push_back(graph);
  std::sort(latest_first.rbegin(), latest_first.rend());
  std::map<GraphId, std::vector<ByteSpan>> result;
  for (const GraphId graph : latest_first) {
    std::vector<ByteSpan> left;
    for (const ByteSpan& span : open) {
      std::uintptr_t at = span.begin;  // up to here it is shared out
      for (const ByteSpan& own : entries_.at(graph).allocated) {
        if (!own.overlaps(span)) continue;
        if (at < own.begin) left.push_back({at, own.begin});
        at = std::min(own.end, span.end);
        result[graph].push_back({std::max(own.begin, span.begin), at});
      }
      if (at < span.end) left.push_back({at, span.end});
    }
    open = std::move(left);
  }
  return result;
}

// For bytes that no cell watched so far.
PoolLedger::GraphId PoolLedger::last_signed(const ByteSpan& bytes) const {
  GraphId last = 0;
  std::uint64_t latest = 0;
  for (const auto& [graph, entry] : entries_) {
    if (entry.signed_at > latest && covers(entry.allocated, bytes)) {
      latest = entry.signed_at;
      last = graph;
    }
  }
  return last;
}

// Cells are the pieces between all ends of reads, and of the allocations that reach into them, so that each allocation
// covers a cell wholly or not at all. The cuts of a graph that is gone stay: they part what it overwrote from the rest.
void PoolLedger::rebuild_cells() {
  const std::vector<Cell> before = std::exchange(cells_, {});
  std::vector<ByteSpan> read;
  for (const auto& [graph, entry] : entries_) {
    for (const Read& span : entry.reads) read.push_back(span.bytes);
  }
  std::set<std::uintptr_t> ends;
  for (const ByteSpan& span : read) ends.insert({span.begin, span.end});
  read = merged(std::move(read));
  for (const Cell& cell : before) ends.insert({cell.bytes.begin, cell.bytes.end});
  for (const auto& [graph, entry] : entries_) {
    for (const ByteSpan& span : entry.allocated) {
      if (covers(read, span)) ends.insert({span.begin, span.end});
    }
  }

  for (const ByteSpan& span : read) {
    for (auto end = ends.upper_bound(span.begin); end != ends.end() && *end <= span.end; ++end) {
      cells_.push_back({.bytes = {*std::prev(end), *end}, .last_writer = 0});
    }
  }
  for (Cell& cell : cells_) {
    const auto old = std::find_if(before.begin(), before.end(),
                                  [&](const Cell& candidate) { return candidate.bytes.overlaps(cell.bytes); });
    cell.last_writer = old != before.end() ? old->last_writer : last_signed(cell.bytes);
  }
  for (auto& [graph, entry] : entries_) {
    entry.cells_read.clear();
    entry.cells_written.clear();
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (covers(entry.allocated, cells_[i].bytes)) entry.cells_written.push_back(i);
      for (const Read& span : entry.reads) {
        if (span.bytes.overlaps(cells_[i].bytes)) entry.cells_read.push_back({i, span.producer});
      }
    }
  }
}

}  // namespace pianola::graph
