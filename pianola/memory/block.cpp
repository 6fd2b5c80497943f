#include <pianola/memory/block.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace pianola::memory {

std::uint64_t peak_bytes(std::span<const Block> blocks) {
  std::vector<std::pair<Moment, std::uint64_t>> freed;
  for (const Block& block : blocks) freed.emplace_back(std::max(block.freed, block.made + 1), block.bytes);
  std::ranges::sort(freed);
  std::uint64_t now = 0, peak = 0;
  auto next = freed.begin();
  for (const Block& block : blocks) {
    for (; next != freed.end() && next->first <= block.made; ++next) now -= next->second;
    now += block.bytes;
    peak = std::max(peak, now);
  }
  return peak;
}

}  // namespace pianola::memory
