#include <pianola/parallel/lane_interference.hpp>

#include <pianola/parallel/dependency_graph.hpp>
#include <pianola/parallel/reachability.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace pianola::parallel {
namespace {

// When units run: which is done before which begins.
class UnitOrder {
 public:
  UnitOrder(const Plan& plan, double sure_us) : plan_(plan), sure_us_(sure_us), follows_(plan.units.size()) {
    const DependencyGraph graph(plan.dependencies, plan.units.size());
    place_.resize(plan.units.size());
    for (std::uint32_t next = 0; const std::uint32_t unit : graph.order()) {
      place_[unit] = next++;
      for (const std::uint32_t before : graph.before(unit)) follows_.connect(place_[before], place_[unit]);
    }
  }

  [[nodiscard]] bool orders(std::uint32_t first, std::uint32_t then) const {
    return place_[first] < place_[then] && follows_.reaches(place_[first], place_[then]);
  }
  // A unit's nodes run one after the other, as they were captured.
  [[nodiscard]] bool is_done_before(std::uint32_t first, std::uint32_t then) const {
    if (first == then || orders(first, then)) return true;
    const double end_us = plan_.lanes.start_us[first] + plan_.units[first].cost_us;
    return end_us + sure_us_ <= plan_.lanes.start_us[then];
  }

 private:
  const Plan& plan_;
  double sure_us_;
  Reachability follows_;
  std::vector<std::uint32_t> place_;  // of each unit in an order that keeps all dependencies
};

using Units = std::vector<std::uint32_t>;

// Of each block, the units that touch it, in the order of the capture.
std::vector<Units> users_of(std::span<const Unit> units, std::span<const ByteSpan> places) {
  std::vector<std::size_t> by_address(places.size());
  std::iota(by_address.begin(), by_address.end(), std::size_t{0});
  std::ranges::sort(by_address, {}, [&](std::size_t i) { return places[i].begin; });
  std::vector<Units> users(places.size());
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    for (const Access& access : units[unit].accesses) {
      const auto ends_before = [&](std::size_t i) { return places[i].end <= access.bytes.begin; };
      for (auto at = std::ranges::partition_point(by_address, ends_before);
           at != by_address.end() && places[*at].begin < access.bytes.end; ++at) {
        if (users[*at].empty() || users[*at].back() != unit) users[*at].push_back(unit);
      }
    }
  }
  return users;
}

// The users of a block that no other user of it has to wait for, or that wait for no other.
struct Ends {
  Units first, last;
};

Ends ends_of(const Units& users, const UnitOrder& order) {
  Ends ends;
  for (const std::uint32_t unit : users) {
    const auto is_ordered_before = [&](std::uint32_t other) { return other != unit && order.orders(other, unit); };
    const auto is_ordered_behind = [&](std::uint32_t other) { return other != unit && order.orders(unit, other); };
    if (std::ranges::none_of(users, is_ordered_before)) ends.first.push_back(unit);
    if (std::ranges::none_of(users, is_ordered_behind)) ends.last.push_back(unit);
  }
  return ends;
}

}  // namespace

memory::Interference interference_on_lanes(const Plan& plan, std::span<const memory::Block> blocks,
                                           std::span<const ByteSpan> places, double sure_us) {
  const UnitOrder order(plan, sure_us);
  std::vector<Ends> ends;
  for (const Units& users : users_of(plan.units, places)) ends.push_back(ends_of(users, order));
  const auto is_over_before = [&](std::size_t one, std::size_t other) {
    return std::ranges::all_of(ends[one].last, [&](std::uint32_t last) {
      return std::ranges::all_of(ends[other].first,
                                 [&](std::uint32_t first) { return order.is_done_before(last, first); });
    });
  };
  memory::Interference interference(blocks.size());
  for (std::size_t one = 0; one < blocks.size(); ++one) {
    for (std::size_t other = one + 1; other < blocks.size(); ++other) {
      if (memory::lives_meet(blocks[one], blocks[other])) continue;
      const bool one_is_first = blocks[one].made < blocks[other].made;
      const bool is_over = one_is_first ? is_over_before(one, other) : is_over_before(other, one);
      if (!is_over) interference.add(one, other);
    }
  }
  return interference;
}

}  // namespace pianola::parallel
