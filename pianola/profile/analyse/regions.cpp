#include <pianola/profile/analyse/regions.hpp>

#include <pianola/profile/analyse/range_iterations.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr std::size_t kMostRegions = 200;
constexpr std::size_t kKinds = 4;

struct Totals {
  std::uint64_t kernels = 0;
  Nanoseconds busy = 0;
  Nanoseconds idle = 0;
};

struct Entry {
  std::string name;
  HostRange::Kind kind;
  std::size_t entries = 0;
  Totals inside = {};
  Totals before = {};     // What the thread had done when it entered.
  std::size_t depth = 0;  // How often the thread is inside.
};

/// Adds up by name; visits the threads one after another.
class RegionTable {
 public:
  RegionTable(const Timeline& timeline, TimeSpan host)
      : timeline_(timeline), host_(host), entry_of_(kKinds * timeline.names(), kNew) {}

  void enter(std::uint32_t range) {
    Entry& entry = entry_of(timeline_.ranges[range]);
    if (entry.depth++ > 0) return;
    entry.before = so_far_;
    if (host_.contains(timeline_.ranges[range].time.begin)) ++entry.entries;
  }
  void act(const HostAct& act, std::span<const std::uint32_t> /*open*/) {
    if (act.waits) return;
    so_far_.kernels += act.kernels;
    so_far_.busy += act.busy;
    so_far_.idle += act.idle;
  }
  void leave(std::uint32_t range) {
    Entry& entry = entry_of(timeline_.ranges[range]);
    if (--entry.depth > 0) return;
    entry.inside.kernels += so_far_.kernels - entry.before.kernels;
    entry.inside.busy += so_far_.busy - entry.before.busy;
    entry.inside.idle += so_far_.idle - entry.before.idle;
  }
  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }

 private:
  static constexpr std::uint32_t kNew = std::numeric_limits<std::uint32_t>::max();

  Entry& entry_of(const HostRange& range) {
    const auto kind = static_cast<std::size_t>(range.kind);
    std::uint32_t& index = entry_of_[kKinds * range.name + kind];
    if (index == kNew) {
      std::string name(without_counter(timeline_.name(range.name)));
      const auto [known, is_new] = by_name_[kind].try_emplace(name, static_cast<std::uint32_t>(entries_.size()));
      if (is_new) entries_.push_back({.name = std::move(name), .kind = range.kind});
      index = known->second;
    }
    return entries_[index];
  }

  const Timeline& timeline_;
  TimeSpan host_;
  std::vector<std::uint32_t> entry_of_;  // By name and kind.
  std::array<std::unordered_map<std::string, std::uint32_t>, kKinds> by_name_;
  std::vector<Entry> entries_;
  Totals so_far_;
};

Region region_of(const Entry& entry, double iterations) {
  const auto mean = [&](Nanoseconds time) { return std::llround(static_cast<double>(time) / iterations); };
  Region region{.name = entry.name, .kind = entry.kind};
  region.entries = static_cast<std::size_t>(std::llround(static_cast<double>(entry.entries) / iterations));
  region.kernels = static_cast<double>(entry.inside.kernels) / iterations;
  region.busy = mean(entry.inside.busy);
  region.idle = mean(entry.inside.idle);
  return region;
}

bool wastes_more(const Region& a, const Region& b) {
  return std::tuple(-a.idle, -a.busy, std::string_view(a.name), a.kind) <
         std::tuple(-b.idle, -b.busy, std::string_view(b.name), b.kind);
}

}  // namespace

std::vector<Region> find_regions(const Timeline& timeline, const std::map<std::int64_t, HostThread>& threads,
                                 const std::vector<Iteration>& iterations) {
  RegionTable table(timeline, {iterations.front().host.begin, iterations.back().host.end});
  for (const auto& [number, thread] : threads) walk(timeline.ranges, thread, table);
  std::vector<Region> regions;
  for (const Entry& entry : table.entries()) {
    const bool has_work = entry.inside.kernels > 0 || entry.inside.busy > 0;
    if (has_work) regions.push_back(region_of(entry, static_cast<double>(iterations.size())));
  }
  std::ranges::sort(regions, wastes_more);
  if (regions.size() > kMostRegions) regions.resize(kMostRegions);
  return regions;
}

}  // namespace pianola::profiling
