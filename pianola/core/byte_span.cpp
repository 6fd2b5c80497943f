#include <pianola/core/byte_span.hpp>

#include <algorithm>

namespace pianola {

std::vector<ByteSpan> merged(std::vector<ByteSpan> spans) {
  std::erase_if(spans, [](const ByteSpan& span) { return span.empty(); });
  std::sort(spans.begin(), spans.end(), [](const ByteSpan& a, const ByteSpan& b) { return a.begin < b.begin; });
  std::size_t kept = 0;
  for (const ByteSpan& span : spans) {
    if (kept > 0 && span.begin <= spans[kept - 1].end) {
      spans[kept - 1].end = std::max(spans[kept - 1].end, span.end);
    } else {
      spans[kept++] = span;
    }
  }
  spans.resize(kept);
  return spans;
}

std::vector<ByteSpan> without(const std::vector<ByteSpan>& spans, const std::vector<ByteSpan>& others) {
  std::vector<ByteSpan> left;
  auto other = others.begin();
  for (ByteSpan span : spans) {
    while (other != others.end() && other->end <= span.begin) ++other;
    for (auto cut = other; cut != others.end() && cut->begin < span.end; ++cut) {
      if (span.begin < cut->begin) left.push_back({.begin = span.begin, .end = cut->begin});
      span.begin = std::min(cut->end, span.end);
    }
    if (!span.empty()) left.push_back(span);
  }
  return left;
}

std::size_t total_bytes(const std::vector<ByteSpan>& spans) {
  std::size_t bytes = 0;
  for (const ByteSpan& span : spans) bytes += span.size();
  return bytes;
}

}  // namespace pianola
