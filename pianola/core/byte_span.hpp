#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pianola {

/// Bytes [begin, end) of memory, by address.
struct ByteSpan {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;

  [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
  [[nodiscard]] bool empty() const noexcept { return begin >= end; }
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept { return begin <= address && address < end; }
  [[nodiscard]] bool overlaps(const ByteSpan& other) const noexcept { return begin < other.end && other.begin < end; }

  friend bool operator==(const ByteSpan&, const ByteSpan&) = default;
};

/// Joins what overlaps or touches; in the order of addresses, without empty ones.
[[nodiscard]] std::vector<ByteSpan> merged(std::vector<ByteSpan> spans);
/// What of `spans` lies in none of `others`. @param spans, others  As merged() returns them.
[[nodiscard]] std::vector<ByteSpan> without(const std::vector<ByteSpan>& spans, const std::vector<ByteSpan>& others);
/// Of all together. Bytes in two spans count twice.
[[nodiscard]] std::size_t total_bytes(const std::vector<ByteSpan>& spans);

}  // namespace pianola
