#pragma once
#include <pianola/parallel/unit.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola::parallel {

// Note [The cost model]
// Times decide which unit goes first and on which lane, never what has to wait for what, so a rough model does: a node
// takes 1.5 us however little it does, and memory goes past at 2.5 TB/s (an H200). It knows nothing of arithmetic,
// which makes large matrix products too cheap; where those fill the device, branches gain little anyway.

inline constexpr double kNodeUs = 1.5;
inline constexpr double kBytesPerUs = 2.5e6;
// A collective: about what NVLink does between two GPUs.
inline constexpr double kCollectiveUs = 15;
inline constexpr double kCommunicatedBytesPerUs = 1e5;

/// Bytes that accesses touch, each counted once. Workspaces and generators do not count: little of them is used.
inline std::size_t touched_bytes(std::span<const Access> accesses) {
  std::vector<ByteSpan> spans;
  for (const Access& access : accesses) {
    if (access.memory == Memory::outside || access.memory == Memory::made) spans.push_back(access.bytes);
  }
  std::sort(spans.begin(), spans.end(), [](const ByteSpan& a, const ByteSpan& b) { return a.begin < b.begin; });
  std::size_t bytes = 0;
  std::uintptr_t counted = 0;  // up to here
  for (const ByteSpan& span : spans) {
    const std::uintptr_t from = std::max(span.begin, counted);
    if (from < span.end) bytes += span.end - from;
    counted = std::max(counted, span.end);
  }
  return bytes;
}

/// Modelled time on the device of a unit with so many nodes.
inline double cost_us(std::size_t nodes, std::span<const Access> accesses) {
  return kNodeUs * static_cast<double>(nodes) + static_cast<double>(touched_bytes(accesses)) / kBytesPerUs;
}

/// The same of a collective.
inline double collective_cost_us(std::span<const Access> accesses) {
  return kCollectiveUs + static_cast<double>(touched_bytes(accesses)) / kCommunicatedBytesPerUs;
}

}  // namespace pianola::parallel
