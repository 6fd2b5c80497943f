#include <pianola/profile/analyse/waits.hpp>

#include <pianola/profile/analyse/range_iterations.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr NameId kNoName = std::numeric_limits<NameId>::max();

struct WaitPlace {
  NameId call = kNoName;
  NameId operation = kNoName;   // Innermost.
  NameId annotation = kNoName;  // Innermost.
  auto operator<=>(const WaitPlace&) const = default;
};

struct Sum {
  std::size_t calls = 0;
  Nanoseconds idle = 0;
};

class WaitTable {
 public:
  explicit WaitTable(const Timeline& timeline) : timeline_(timeline) {}

  void enter(std::uint32_t /*range*/) {}
  void leave(std::uint32_t /*range*/) {}
  void act(const HostAct& act, std::span<const std::uint32_t> open) {
    if (!act.waits) return;
    Sum& sum = sums_[place_of(timeline_.calls[act.call].name, open)];
    ++sum.calls;
    sum.idle += act.idle;
  }
  [[nodiscard]] const std::map<WaitPlace, Sum>& sums() const noexcept { return sums_; }

 private:
  [[nodiscard]] WaitPlace place_of(NameId call, std::span<const std::uint32_t> open) const {
    WaitPlace place{.call = call};
    for (std::size_t i = open.size(); i-- > 0;) {
      const HostRange& range = timeline_.ranges[open[i]];
      if (range.kind == HostRange::Kind::operation && place.operation == kNoName) place.operation = range.name;
      if (range.kind != HostRange::Kind::annotation || place.annotation != kNoName) continue;
      if (without_counter(timeline_.name(range.name)) != kProfilerStep) place.annotation = range.name;
    }
    return place;
  }

  const Timeline& timeline_;
  std::map<WaitPlace, Sum> sums_;
};

std::string in_words(const Timeline& timeline, const WaitPlace& place) {
  const std::string operation = place.operation == kNoName ? "" : timeline.name(place.operation);
  if (place.annotation == kNoName) return operation;
  const std::string_view annotation = without_counter(timeline.name(place.annotation));
  return fmt::format("{}{}in '{}'", operation, operation.empty() ? "" : ", ", annotation);
}

}  // namespace

std::vector<Wait> find_waits(const Timeline& timeline, const std::map<std::int64_t, HostThread>& threads,
                             std::size_t iterations) {
  WaitTable table(timeline);
  for (const auto& [number, thread] : threads) walk(timeline.ranges, thread, table);
  std::map<std::pair<std::string, std::string>, Sum> by_words;  // places that differ by a counter are one
  for (const auto& [place, sum] : table.sums()) {
    Sum& all = by_words[{timeline.name(place.call), in_words(timeline, place)}];
    all.calls += sum.calls;
    all.idle += sum.idle;
  }
  std::vector<Wait> waits;
  const auto per_iteration = [&](auto value) { return static_cast<double>(value) / static_cast<double>(iterations); };
  for (const auto& [words, sum] : by_words) {
    waits.push_back({.call = words.first,
                     .inside = words.second,
                     .per_iteration = per_iteration(sum.calls),
                     .idle = std::llround(per_iteration(sum.idle))});
  }
  std::ranges::stable_sort(waits, [](const Wait& a, const Wait& b) {
    return std::tuple(-a.idle, -a.per_iteration) < std::tuple(-b.idle, -b.per_iteration);
  });
  return waits;
}

}  // namespace pianola::profiling
