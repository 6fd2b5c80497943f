#include <pianola/parallel/lanes.hpp>

#include <pianola/parallel/testing/steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace pianola::parallel::lanes_test {
namespace {

using pianola::testing::RandomSteps;
using pianola::testing::to_string;
using pianola::testing::unit;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Unit> units_of_cost(const std::vector<double>& costs) {
  std::vector<Unit> units;
  for (const double cost : costs) units.push_back(unit({}, cost));
  return units;
}

Dependency behind(std::uint32_t from, std::uint32_t to) { return {from, to, Cause::value}; }

TEST(Lanes, OfNoUnitsAreNone) {
  const Lanes lanes = schedule_lanes({}, {}, 4);
  EXPECT_THAT(lanes.lane_of, IsEmpty());
  EXPECT_EQ(lanes.used, 0);
  EXPECT_EQ(lanes.makespan_us, 0);
}

TEST(Lanes, GiveAChainOneLane) {
  const std::vector<Dependency> chain = {behind(0, 1), behind(1, 2)};
  const Lanes lanes = schedule_lanes(units_of_cost({1, 2, 3}), chain, 8);
  EXPECT_THAT(lanes.lane_of, ElementsAre(0, 0, 0));
  EXPECT_THAT(lanes.start_us, ElementsAre(0, 1, 3));
  EXPECT_EQ(lanes.used, 1);
  EXPECT_EQ(lanes.makespan_us, 6);
}

TEST(Lanes, RunIndependentUnitsAtOnce) {
  const Lanes lanes = schedule_lanes(units_of_cost({5, 5, 5}), {}, 8);
  EXPECT_THAT(lanes.lane_of, ElementsAre(0, 1, 2));
  EXPECT_THAT(lanes.start_us, ElementsAre(0, 0, 0));
  EXPECT_EQ(lanes.makespan_us, 5);
}

TEST(Lanes, TakeTheLongestPathToTheEndFirst) {
  // 0 and 1 cost the same, but 2 waits for 1.
  const std::vector<Dependency> dependencies = {behind(1, 2)};
  const Lanes lanes = schedule_lanes(units_of_cost({5, 5, 3}), dependencies, 1);
  EXPECT_THAT(lanes.start_us, ElementsAre(5, 0, 10));
}

TEST(Lanes, ChargeForWaitingForAnotherLane) {
  const std::vector<Dependency> dependencies = {behind(0, 2), behind(1, 2)};
  const Lanes lanes = schedule_lanes(units_of_cost({4, 4, 2}), dependencies, 2);
  EXPECT_THAT(lanes.lane_of, ElementsAre(0, 1, 0));
  EXPECT_THAT(lanes.start_us, ElementsAre(0, 0, 5));
}

TEST(Lanes, StayOnALaneWhereCrossingWouldTakeLonger) {
  // 2 may begin at 1.5 behind its dependency 0, on whose lane 1 runs until then, and at 2 on the lane that is free.
  const std::vector<Dependency> dependencies = {behind(0, 1), behind(0, 2)};
  EXPECT_THAT(schedule_lanes(units_of_cost({1, 0.5, 0.25}), dependencies, 2).lane_of, ElementsAre(0, 0, 0));
  EXPECT_THAT(schedule_lanes(units_of_cost({1, 1.5, 0.25}), dependencies, 2).lane_of, ElementsAre(0, 0, 1));
}

TEST(Lanes, DoNotLeaveALaneIdleForAUnitThatWaits) {
  // 2 has the longer path, but waits for 0 until 10; 1 can run on the other lane meanwhile.
  const std::vector<Dependency> dependencies = {behind(0, 2)};
  const Lanes lanes = schedule_lanes(units_of_cost({10, 3, 20}), dependencies, 2);
  EXPECT_THAT(lanes.start_us, ElementsAre(0, 0, 10));
  EXPECT_THAT(lanes.lane_of, ElementsAre(0, 1, 0));
}

TEST(Lanes, NumberTheLaneWhereTheCriticalPathBeginsZero) {
  const std::vector<Dependency> dependencies = {behind(1, 2)};
  const Lanes lanes = schedule_lanes(units_of_cost({1, 5, 5}), dependencies, 4);
  EXPECT_THAT(lanes.lane_of, ElementsAre(1, 0, 0));
  EXPECT_EQ(lanes.used, 2);
}

TEST(Lanes, RunUnitsThatTakeNoTime) {
  const std::vector<Dependency> dependencies = {behind(0, 1), behind(0, 2)};
  const Lanes lanes = schedule_lanes(units_of_cost({0, 0, 0}), dependencies, 2);
  EXPECT_EQ(lanes.makespan_us, 0);
  EXPECT_EQ(lanes.used, 1);
}

TEST(Lanes, GiveWhatCommunicatesALaneOfItsOwn) {
  std::vector<Unit> units = units_of_cost({5, 5, 5, 5});
  units[0].communicates = units[2].communicates = true;
  const Lanes lanes = schedule_lanes(units, {}, 1);
  EXPECT_EQ(lanes.used, 2);
  EXPECT_EQ(lanes.lane_of[0], lanes.lane_of[2]);
  EXPECT_EQ(lanes.lane_of[1], lanes.lane_of[3]);
  EXPECT_NE(lanes.lane_of[0], lanes.lane_of[1]);
  EXPECT_EQ(lanes.makespan_us, 10);
}

struct Scheduled {
  std::vector<Unit> units;
  std::vector<Dependency> dependencies;
  int most;
  Lanes lanes;

  [[nodiscard]] double end_us(std::size_t unit) const { return lanes.start_us[unit] + units[unit].cost_us; }
};

Scheduled random_schedule(RandomSteps& steps) {
  Scheduled made{
      .units = steps.next(), .dependencies = {}, .most = 1 + static_cast<int>(steps.draw(kMostLanes)), .lanes = {}};
  made.dependencies = transitive_reduction(find_dependencies(made.units), made.units.size());
  made.lanes = schedule_lanes(made.units, made.dependencies, made.most);
  return made;
}

TEST(Lanes, StartNoUnitBeforeItsDependenciesEnd) {
  RandomSteps steps(11);
  for (int round = 0; round < 1000; ++round) {
    const Scheduled made = random_schedule(steps);
    for (const auto& [from, to, cause] : made.dependencies) {
      const double crossing = made.lanes.lane_of[from] == made.lanes.lane_of[to] ? 0 : 1;
      ASSERT_GE(made.lanes.start_us[to], made.end_us(from) + crossing) << to_string(made.units);
    }
  }
}

TEST(Lanes, RunOneUnitAtATime) {
  RandomSteps steps(12);
  for (int round = 0; round < 1000; ++round) {
    const Scheduled made = random_schedule(steps);
    for (std::size_t one = 0; one < made.units.size(); ++one) {
      for (std::size_t other = 0; other < one; ++other) {
        if (made.lanes.lane_of[one] != made.lanes.lane_of[other]) continue;
        ASSERT_TRUE(made.lanes.start_us[one] >= made.end_us(other) || made.lanes.start_us[other] >= made.end_us(one))
            << to_string(made.units);
      }
    }
  }
}

TEST(Lanes, AreNoMoreThanAskedForAndNumberedWithoutGaps) {
  RandomSteps steps(13);
  for (int round = 0; round < 1000; ++round) {
    const Scheduled made = random_schedule(steps);
    const std::set<std::uint32_t> numbers(made.lanes.lane_of.begin(), made.lanes.lane_of.end());
    ASSERT_EQ(numbers.size(), made.lanes.used);
    ASSERT_EQ(*numbers.rbegin() + 1, made.lanes.used);
    ASSERT_LE(made.lanes.used, static_cast<std::size_t>(made.most));
    ASSERT_EQ(made.lanes.lane_of[critical_path(made.units, made.dependencies).units.front()], 0);
  }
}

TEST(Lanes, LeaveNoGapOnASingleOne) {
  RandomSteps steps(14);
  for (int round = 0; round < 200; ++round) {
    const std::vector<Unit> units = steps.next();
    double serial_us = 0;
    for (const Unit& unit : units) serial_us += unit.cost_us;
    ASSERT_EQ(schedule_lanes(units, find_dependencies(units), 1).makespan_us, serial_us) << to_string(units);
  }
}

TEST(Lanes, AreTheSameEveryTime) {
  RandomSteps steps(15);
  for (int round = 0; round < 200; ++round) {
    Scheduled made = random_schedule(steps);
    std::reverse(made.dependencies.begin(), made.dependencies.end());
    const Lanes again = schedule_lanes(made.units, made.dependencies, made.most);
    ASSERT_EQ(again.lane_of, made.lanes.lane_of);
    ASSERT_EQ(again.start_us, made.lanes.start_us);
  }
}

}  // namespace
}  // namespace pianola::parallel::lanes_test
