#include <pianola/graph/ledger.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace pianola::graph {
namespace {

bool overlap(const ByteSpan& a, const ByteSpan& b) { return a.begin < b.end && b.begin < a.end; }

std::vector<ByteSpan> merged(std::vector<ByteSpan> spans) {
  std::sort(spans.begin(), spans.end(), [](const ByteSpan& a, const ByteSpan& b) { return a.begin < b.begin; });
  std::vector<ByteSpan> result;
  for (const ByteSpan& span : spans) {
    if (span.begin == span.end) continue;
    if (!result.empty() && span.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, span.end);
    } else {
      result.push_back(span);
    }
  }
  return result;
}

bool covers(const std::vector<ByteSpan>& spans, const ByteSpan& bytes) {
  const auto after = std::partition_point(spans.begin(), spans.end(),
                                          [&](const ByteSpan& span) { return span.end <= bytes.begin; });
  return after != spans.end() && overlap(*after, bytes);
}

}  // namespace

PoolLedger::GraphId PoolLedger::add(std::vector<ByteSpan> allocated, const std::vector<ByteSpan>& reads) {
  const GraphId graph = next_++;
  Entry entry;
  for (const ByteSpan& bytes : merged(reads)) {
    if (const GraphId producer = producer_of(bytes); producer != 0) entry.reads.push_back({bytes, producer});
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
  return producer_of({.begin = address, .end = address + 1}) != 0;
}

PoolLedger::GraphId PoolLedger::overwritten_by(GraphId graph) const {
  for (const CellRead& read : entries_.at(graph).cells_read) {
    const GraphId last = cells_[read.cell].last_writer;
    if (last != read.producer) return last;
  }
  return 0;
}

void PoolLedger::sign(GraphId graph) {
  for (const std::size_t cell : entries_.at(graph).cells_written) cells_[cell].last_writer = graph;
}

// A result that is alive belongs to the graph that allocated its bytes last.
PoolLedger::GraphId PoolLedger::producer_of(const ByteSpan& bytes) const {
  GraphId latest = 0;
  if (!overlap(bounds_, bytes)) return latest;
  for (const auto& [graph, entry] : entries_) {
    if (graph > latest && covers(entry.allocated, bytes)) latest = graph;
  }
  return latest;
}

// Cells are the pieces between all ends of reads, and of the allocations that reach into them, so that each allocation
// covers a cell wholly or not at all.
void PoolLedger::rebuild_cells() {
  const std::vector<Cell> before = std::exchange(cells_, {});
  std::vector<ByteSpan> read;
  for (const auto& [graph, entry] : entries_) {
    for (const Read& span : entry.reads) read.push_back(span.bytes);
  }
  std::set<std::uintptr_t> ends;
  for (const ByteSpan& span : read) ends.insert({span.begin, span.end});
  read = merged(std::move(read));
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
                                  [&](const Cell& candidate) { return overlap(candidate.bytes, cell.bytes); });
    if (old != before.end()) cell.last_writer = old->last_writer;
  }
  for (auto& [graph, entry] : entries_) {
    entry.cells_read.clear();
    entry.cells_written.clear();
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (covers(entry.allocated, cells_[i].bytes)) entry.cells_written.push_back(i);
      for (const Read& span : entry.reads) {
        if (!overlap(span.bytes, cells_[i].bytes)) continue;
        entry.cells_read.push_back({i, span.producer});
        if (cells_[i].last_writer == 0) cells_[i].last_writer = span.producer;
      }
    }
  }
}

}  // namespace pianola::graph
