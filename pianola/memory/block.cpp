#include <pianola/memory/block.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace pianola::memory {

Peak peak_of(std::span<const Block> blocks) {
  std::vector<std::pair<Moment, std::uint64_t>> freed;
  for (const Block& block : blocks) freed.emplace_back(std::max(block.freed, block.made + 1), block.bytes);
  std::ranges::sort(freed);
  std::uint64_t now = 0;
  Peak peak;
  auto next = freed.begin();
  for (const Block& block : blocks) {
    for (; next != freed.end() && next->first <= block.made; ++next) now -= next->second;
    now += block.bytes;
    if (now > peak.bytes) peak = {.bytes = now, .at = block.made};
  }
  return peak;
}

}  // namespace pianola::memory
