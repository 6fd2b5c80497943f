#include <pianola/parallel/lanes.hpp>

#include <pianola/parallel/dependency_graph.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

namespace pianola::parallel {
namespace {

constexpr double kCrossingUs = 1;  // assumed; between 0 and 3 us it made no difference on an H200

// By unit, the longest path from its start to the end of the step.
std::vector<double> paths_to_end(std::span<const Unit> units, const DependencyGraph& graph) {
  std::vector<double> paths(units.size());
  std::vector<std::uint32_t> order = graph.order();
  std::reverse(order.begin(), order.end());
  for (const std::uint32_t unit : order) {
    for (const std::uint32_t next : graph.behind(unit)) paths[unit] = std::max(paths[unit], paths[next]);
    paths[unit] += units[unit].cost_us;
  }
  return paths;
}

// Runs the model of a device with so many lanes.
class Scheduler {
 public:
  Scheduler(std::span<const Unit> units, const DependencyGraph& graph, int lanes)
      : units_(units),
        graph_(graph),
        paths_(paths_to_end(units, graph)),
        computing_(static_cast<std::size_t>(lanes)),
        lanes_(computing_ + 1) {
    result_.lane_of.resize(units.size());
    result_.start_us.resize(units.size());
    ends_.resize(units.size());
    missing_.resize(units.size());
    for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
      missing_[unit] = graph.before(unit).size();
      if (missing_[unit] == 0) ready_.emplace(-paths_[unit], unit);
    }
  }

  Lanes run() {
    for (std::size_t left = units_.size(); left > 0; --left) {
      wait_for_a_free_lane();
      const std::uint32_t unit = ready_.top().second;
      ready_.pop();
      place(unit, best_lane(unit));
    }
    return std::move(result_);
  }

  /// With that for units that communicate.
  [[nodiscard]] std::size_t lanes() const noexcept { return lanes_.size(); }

 private:
  struct Lane {
    double free_us = 0;
    std::optional<std::uint32_t> last;
  };
  using Entry = std::pair<double, std::uint32_t>;
  using FirstOut = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;

  // Until a lane is free and a unit could run. Units whose dependencies are done by then compete for the lane.
  void wait_for_a_free_lane() {
    double now = std::numeric_limits<double>::max();
    for (std::size_t lane = 0; lane < computing_; ++lane) now = std::min(now, lanes_[lane].free_us);
    if (ready_.empty()) now = std::max(now, waiting_.top().first);
    for (; !waiting_.empty() && waiting_.top().first <= now; waiting_.pop()) {
      const std::uint32_t unit = waiting_.top().second;
      ready_.emplace(-paths_[unit], unit);
    }
  }

  [[nodiscard]] double start_on(std::uint32_t lane, std::uint32_t unit) const {
    double start = lanes_[lane].free_us;
    for (const std::uint32_t before : graph_.before(unit)) {
      start = std::max(start, ends_[before] + (result_.lane_of[before] == lane ? 0 : kCrossingUs));
    }
    return start;
  }

  // Where it can begin soonest. Of several such lanes, one whose last unit it waits for anyhow, else the one that has
  // been free for longest: if the model is wrong about the times, it will still be the least likely to hold this up.
  [[nodiscard]] std::uint32_t best_lane(std::uint32_t unit) const {
    if (units_[unit].communicates) return static_cast<std::uint32_t>(computing_);
    const auto rank = [&](std::uint32_t lane) {
      const auto& [free_us, last] = lanes_[lane];
      const auto before = graph_.before(unit);
      const bool follows = last && std::find(before.begin(), before.end(), *last) != before.end();
      return std::tuple(start_on(lane, unit), !follows, free_us);
    };
    std::uint32_t best = 0;
    for (std::uint32_t lane = 1; lane < computing_; ++lane) {
      if (rank(lane) < rank(best)) best = lane;
    }
    return best;
  }

  void place(std::uint32_t unit, std::uint32_t lane) {
    result_.start_us[unit] = start_on(lane, unit);
    result_.lane_of[unit] = lane;
    ends_[unit] = result_.start_us[unit] + units_[unit].cost_us;
    result_.makespan_us = std::max(result_.makespan_us, ends_[unit]);
    lanes_[lane] = {.free_us = ends_[unit], .last = unit};
    for (const std::uint32_t next : graph_.behind(unit)) {
      if (--missing_[next] == 0) waiting_.emplace(dependencies_done_us(next), next);
    }
  }

  [[nodiscard]] double dependencies_done_us(std::uint32_t unit) const {
    double done = 0;
    for (const std::uint32_t before : graph_.before(unit)) done = std::max(done, ends_[before]);
    return done;
  }

  std::span<const Unit> units_;
  const DependencyGraph& graph_;
  std::vector<double> paths_;
  std::size_t computing_;  // lanes; the last one is that of units that communicate
  std::vector<Lane> lanes_;
  std::vector<double> ends_;          // by unit, of those placed
  std::vector<std::size_t> missing_;  // by unit, how many that it waits for are not placed yet
  FirstOut waiting_;                  // all that they wait for is placed: by when that is done
  FirstOut ready_;                    // and done: the longest path first, then the first captured
  Lanes result_;
};

// Numbers the `count` lanes anew: `first` becomes lane 0, the others follow by the first captured of their units.
void renumber(Lanes& lanes, std::size_t count, std::uint32_t first) {
  std::vector<std::optional<std::uint32_t>> numbers(count);
  std::uint32_t used = 0;
  numbers[first] = used++;
  for (std::uint32_t& lane : lanes.lane_of) {
    if (!numbers[lane]) numbers[lane] = used++;
    lane = *numbers[lane];
  }
  lanes.used = used;
}

}  // namespace

Lanes schedule_lanes(std::span<const Unit> units, std::span<const Dependency> dependencies, int lanes) {
  if (units.empty()) return {};
  const DependencyGraph graph(dependencies, units.size());
  Scheduler scheduler(units, graph, lanes);
  Lanes result = scheduler.run();
  renumber(result, scheduler.lanes(), result.lane_of[critical_path(units, dependencies).units.front()]);
  return result;
}

}  // namespace pianola::parallel
