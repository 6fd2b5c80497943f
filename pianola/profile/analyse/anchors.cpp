#include <pianola/profile/analyse/anchors.hpp>

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace pianola::profiling {
namespace {

constexpr std::size_t kFewestOccurrences = 3;  // Occurrences that make a repetition.
constexpr std::size_t kTolerance = 10;         // Distances that differ by less than a tenth count as the same,
constexpr std::size_t kFewItems = 2;           // and those that differ by two items, but no more than a quarter.
constexpr double kRegularShare = 0.8;          // Of the span of an anchor, that of regular distances.

// The distance such that half of the span is made of distances as long or longer: many short ones inside of an
// iteration weigh no more than the rest of the iteration.
std::size_t prevailing(std::vector<std::size_t> distances) {
  std::ranges::sort(distances);
  const std::size_t span = std::accumulate(distances.begin(), distances.end(), std::size_t{0});
  std::size_t sum = 0;
  for (const std::size_t distance : distances) {
    sum += distance;
    if (2 * sum >= span) return distance;
  }
  return distances.back();
}

// Occurrences of each symbol, one symbol after another; ends[s] is where those of s end.
struct Occurrences {
  std::vector<std::size_t> ends;
  std::vector<std::uint32_t> items;
};

Occurrences occurrences_of(std::span<const std::uint32_t> symbols, std::uint32_t count) {
  Occurrences found{.ends = std::vector<std::size_t>(count + 1, 0), .items = {}};
  for (const std::uint32_t symbol : symbols) {
    if (symbol != kSeldom) ++found.ends[symbol + 1];
  }
  std::partial_sum(found.ends.begin(), found.ends.end(), found.ends.begin());
  found.items.resize(found.ends.back());
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i] != kSeldom) found.items[found.ends[symbols[i]]++] = static_cast<std::uint32_t>(i);
  }
  found.ends.pop_back();
  return found;
}

}  // namespace

Anchors anchors_of(std::vector<std::size_t> occurrences) {
  if (occurrences.size() < kFewestOccurrences) return {};
  std::vector<std::size_t> distances;
  for (std::size_t i = 1; i < occurrences.size(); ++i) distances.push_back(occurrences[i] - occurrences[i - 1]);
  const std::size_t distance = prevailing(distances);
  const auto is_regular = [&](std::size_t d) {
    const std::size_t off = d > distance ? d - distance : distance - d;
    return off <= std::max(distance / kTolerance, std::min(kFewItems, distance / 4));
  };
  const auto first = std::ranges::find_if(distances, is_regular) - distances.begin();
  const auto last = std::find_if(distances.rbegin(), distances.rend(), is_regular).base() - distances.begin();
  Anchors anchors{.at = {occurrences.begin() + first, occurrences.begin() + last + 1}, .distance = distance};
  for (auto i = first; i < last; ++i) {
    const std::size_t d = distances[static_cast<std::size_t>(i)];
    if (is_regular(d)) anchors.regular += d;
  }
  const auto span = static_cast<double>(anchors.at.back() - anchors.at.front());
  if (anchors.at.size() < kFewestOccurrences || static_cast<double>(anchors.regular) < kRegularShare * span) return {};
  return anchors;
}

std::vector<Anchors> find_anchors(std::span<const std::uint32_t> symbols, std::uint32_t count, std::size_t limit) {
  const Occurrences occurrences = occurrences_of(symbols, count);
  std::unordered_map<std::size_t, Anchors> best;
  std::size_t begin = 0;
  for (const std::size_t end : occurrences.ends) {
    const auto first = occurrences.items.begin();
    Anchors anchors =
        anchors_of({first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end)});
    begin = end;
    if (anchors.at.empty()) continue;
    Anchors& known = best[anchors.distance];
    if (anchors.regular > known.regular) known = std::move(anchors);
  }
  std::vector<Anchors> found;
  for (auto& [distance, anchors] : best) found.push_back(std::move(anchors));
  std::ranges::sort(found, [](const Anchors& a, const Anchors& b) {
    return a.regular != b.regular ? a.regular > b.regular : a.distance < b.distance;
  });
  if (found.size() > limit) found.resize(limit);
  return found;
}

std::uint32_t double_length(std::vector<std::uint32_t>& symbols, std::size_t length) {
  struct Known {
    std::uint32_t symbol;
    std::uint32_t occurrences;
  };
  std::unordered_map<std::uint64_t, Known> pairs;
  const auto pair_at = [&](std::size_t i) { return (std::uint64_t{symbols[i]} << 32U) | symbols[i + length]; };
  const auto is_pair = [&](std::size_t i) {
    return i + length < symbols.size() && symbols[i] != kSeldom && symbols[i + length] != kSeldom;
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    if (is_pair(i)) ++pairs.try_emplace(pair_at(i), Known{kSeldom, 0}).first->second.occurrences;
  }
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < symbols.size(); ++i) {  // item i + length is still of the old length: i ascends
    if (!is_pair(i)) {
      symbols[i] = kSeldom;
      continue;
    }
    Known& known = pairs.find(pair_at(i))->second;
    if (known.occurrences < kFewestOccurrences) {
      symbols[i] = kSeldom;
      continue;
    }
    if (known.symbol == kSeldom) known.symbol = count++;
    symbols[i] = known.symbol;
  }
  return count;
}

}  // namespace pianola::profiling
