#include <pianola/parallel/dependencies.hpp>

#include <pianola/parallel/testing/reference.hpp>
#include <pianola/parallel/testing/steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace pianola::parallel::dependencies_test {
namespace {

using pianola::testing::barrier;
using pianola::testing::closure;
using pianola::testing::Matrix;
using pianola::testing::RandomSteps;
using pianola::testing::read;
using pianola::testing::storage;
using pianola::testing::to_string;
using pianola::testing::unit;
using pianola::testing::write;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ByteSpan kBytes{0x1000, 0x2000};

std::string found(const std::vector<Unit>& units) { return to_string(find_dependencies(units)); }

TEST(Dependencies, OfNoUnitsAreNone) {
  EXPECT_THAT(find_dependencies({}), IsEmpty());
  EXPECT_THAT(transitive_reduction({}, 0), IsEmpty());
  EXPECT_THAT(critical_path({}, {}).units, IsEmpty());
  EXPECT_EQ(critical_path({}, {}).us, 0);
}

TEST(Dependencies, OfOneUnitAreNoneWhateverItTouches) {
  EXPECT_EQ(found({unit({read(kBytes), write(kBytes), write({0x1800, 0x3000})})}), "");
  EXPECT_EQ(found({barrier("host copy")}), "");
  EXPECT_THAT(critical_path(std::vector{unit({}, 7)}, {}).units, ElementsAre(0));
}

TEST(Dependencies, OrderAReadBehindTheWriteOfItsBytes) {
  EXPECT_EQ(found({unit({write(kBytes)}), unit({read({0x1fff, 0x3000})})}), "0>1 value");
  EXPECT_EQ(found({unit({write(kBytes)}), unit({read({0x2000, 0x3000})})}), "");
  EXPECT_EQ(found({unit({write(kBytes)}), unit({read({0x0fff, 0x1000})})}), "");
}

TEST(Dependencies, LeaveReadsOfTheSameBytesAlone) {
  EXPECT_EQ(found({unit({read(kBytes)}), unit({read(kBytes)}), unit({read({0, 0x9000})})}), "");
}

TEST(Dependencies, OrderAWriteBehindTheLastWriteAndTheReadsSince) {
  EXPECT_EQ(found({unit({write(kBytes, storage(0))}), unit({read(kBytes)}), unit({read(kBytes, storage(0))}),
                   unit({write(kBytes, storage(0))}), unit({read(kBytes)})}),
            "0>1 value, 0>2 value, 0>3 value, 1>3 reuse, 2>3 value, 3>4 value");
}

TEST(Dependencies, FollowEveryPartOfASpanOnItsOwn) {
  const std::vector<Unit> units = {unit({write({0, 100})}), unit({write({20, 40})}), unit({read({10, 20})}),
                                   unit({read({20, 30})}), unit({read({30, 100})})};
  EXPECT_EQ(found(units), "0>1 reuse, 0>2 value, 1>3 value, 0>4 value, 1>4 value");
}

TEST(Dependencies, NameReuseOnlyWhereAnotherStorageHadTheBytes) {
  EXPECT_EQ(found({unit({read(kBytes, storage(0))}), unit({write(kBytes, storage(1))})}), "0>1 reuse");
  EXPECT_EQ(found({unit({write(kBytes, storage(0))}), unit({write(kBytes, storage(1))})}), "0>1 reuse");
  EXPECT_EQ(found({unit({write(kBytes)}), unit({write(kBytes)})}), "0>1 reuse");
  EXPECT_EQ(found({unit({read(kBytes, storage(0))}), unit({write(kBytes, storage(0))})}), "0>1 value");
  EXPECT_EQ(found({unit({write(kBytes, storage(0))}), unit({write(kBytes, storage(0))})}), "0>1 value");
}

TEST(Dependencies, TakeWritesToStateAndGeneratorsForValues) {
  for (const Memory memory : {Memory::outside, Memory::generator}) {
    EXPECT_EQ(found({unit({read(kBytes, nullptr, memory)}), unit({write(kBytes, nullptr, memory)}),
                     unit({write(kBytes, storage(1), memory)})}),
              "0>1 value, 1>2 value");
  }
}

TEST(Dependencies, NameWorkspacesEvenWhereOneUnitReadsThem) {
  const Access used = write(kBytes, nullptr, Memory::workspace);
  const Access only_read = read(kBytes, nullptr, Memory::workspace);
  EXPECT_EQ(found({unit({used}), unit({only_read}), unit({used})}), "0>1 workspace, 0>2 workspace, 1>2 workspace");
}

TEST(Dependencies, NameTheFirstCauseOfSeveral) {
  const Access scratch = write({0, 8}, nullptr, Memory::workspace);
  const ByteSpan reused{8, 16};
  const ByteSpan result{16, 24};
  EXPECT_EQ(found({unit({scratch, write(reused)}), unit({scratch, write(reused)})}), "0>1 reuse");
  EXPECT_EQ(found({unit({scratch, write(reused), write(result)}), unit({scratch, write(reused), read(result)})}),
            "0>1 value");
  Unit foreign = barrier("foreign nodes");
  foreign.accesses = {scratch};
  EXPECT_EQ(found({unit({scratch}), foreign}), "0>1 workspace");
}

TEST(Dependencies, LetAUnitReadAndWriteTheSameBytes) {
  const Unit in_place = unit({read(kBytes, storage(0)), write(kBytes, storage(0))});
  EXPECT_EQ(found({in_place, in_place, in_place}), "0>1 value, 1>2 value");
}

TEST(Dependencies, SeeAllAccessesOfAUnitThatOverlap) {
  // The scratch of an operation may be freed and become its result: the next in-place write is about the result.
  const Unit twice = unit({write({0, 64}), write({0, 32}, storage(0)), read({16, 48}, storage(1))});
  EXPECT_EQ(found({twice, unit({write({0, 8}, storage(0))})}), "0>1 value");
  EXPECT_EQ(found({twice, unit({write({40, 44}, storage(1))})}), "0>1 value");
  EXPECT_EQ(found({twice, unit({write({50, 60}, storage(1))})}), "0>1 reuse");
}

TEST(Dependencies, OrderEverythingAgainstABarrier) {
  const Unit any = unit({});
  const Unit host = barrier("host copy");
  EXPECT_EQ(found({host, any, any}), "0>1 barrier, 0>2 barrier");
  EXPECT_EQ(found({any, any, host}), "0>2 barrier, 1>2 barrier");
  EXPECT_EQ(found({any, host, any, any, host, any}),
            "0>1 barrier, 1>2 barrier, 1>3 barrier, 1>4 barrier, 2>4 barrier, 3>4 barrier, 4>5 barrier");
}

TEST(Dependencies, ReachToTheLastByteOfMemory) {
  const ByteSpan all{0, UINTPTR_MAX};
  EXPECT_EQ(found({unit({write(all)}), unit({read({UINTPTR_MAX - 1, UINTPTR_MAX})})}), "0>1 value");
}

TEST(Dependencies, AreThoseThatEachByteAsksFor) {
  RandomSteps steps(1);
  for (int round = 0; round < 3000; ++round) {
    const std::vector<Unit> units = steps.next();
    const std::vector<Dependency> dependencies = find_dependencies(units);
    ASSERT_EQ(to_string(dependencies), to_string(pianola::testing::direct_dependencies(units))) << to_string(units);
    ASSERT_EQ(closure(std::span<const Dependency>(dependencies), units.size()),
              closure(pianola::testing::conflicts(units)))
        << to_string(units);
  }
}

TEST(Reduction, DropsWhatFollowsFromOthers) {
  const std::vector<Dependency> dependencies = {{0, 1, Cause::value},
                                                {0, 2, Cause::reuse},
                                                {1, 2, Cause::value},
                                                {0, 3, Cause::barrier},
                                                {2, 3, Cause::workspace}};
  EXPECT_EQ(to_string(transitive_reduction(dependencies, 4)), "0>1 value, 1>2 value, 2>3 workspace");
}

TEST(Reduction, KeepsTheFirstCauseOfAPairThatOccursTwice) {
  const std::vector<Dependency> dependencies = {{0, 1, Cause::lane}, {0, 1, Cause::reuse}, {0, 1, Cause::workspace}};
  EXPECT_EQ(to_string(transitive_reduction(dependencies, 2)), "0>1 reuse");
}

TEST(Reduction, TakesLanesThatRunALaterUnitFirst) {
  const std::vector<Dependency> dependencies = {
      {0, 3, Cause::value}, {0, 2, Cause::value}, {2, 1, Cause::lane}, {0, 1, Cause::value}};
  EXPECT_EQ(to_string(transitive_reduction(dependencies, 4)), "2>1 lane, 0>2 value, 0>3 value");
}

// Between units in any order, since lanes are; without cycles.
std::vector<Dependency> random_dependencies(RandomSteps& random, std::size_t units) {
  std::vector<std::uint32_t> order(units);
  for (std::uint32_t unit = 0; unit < units; ++unit) order[unit] = unit;
  for (std::size_t last = units; last > 1; --last) std::swap(order[last - 1], order[random.draw(last)]);
  std::vector<Dependency> dependencies;
  for (std::size_t count = random.draw(3 * units); count > 0; --count) {
    const std::size_t from = random.draw(units);
    const std::size_t to = random.draw(units);
    if (from != to) dependencies.push_back({order[std::min(from, to)], order[std::max(from, to)], Cause::value});
  }
  return dependencies;
}

TEST(Reduction, OrdersTheSamePairsAndNeedsEachOfThem) {
  RandomSteps random(2);
  for (int round = 0; round < 60; ++round) {
    const std::size_t units = 1 + random.draw(round < 50 ? 20 : 150);  // words of 64 units fill up and overflow
    const std::vector<Dependency> dependencies = random_dependencies(random, units);
    const std::vector<Dependency> kept = transitive_reduction(dependencies, units);
    const Matrix ordered = closure(std::span(dependencies), units);
    ASSERT_EQ(closure(std::span(kept), units), ordered);
    for (const Dependency& dependency : kept) {
      for (std::size_t via = 0; via < units; ++via) {
        ASSERT_FALSE(ordered[dependency.from][via] && ordered[via][dependency.to]) << to_string(kept);
      }
    }
  }
}

TEST(CriticalPath, IsTheLongestByCostAndNotByUnits) {
  const std::vector<Unit> units = {unit({}, 1), unit({}, 10), unit({}, 1), unit({}, 1), unit({}, 2)};
  const std::vector<Dependency> dependencies = {
      {0, 2, Cause::value}, {2, 3, Cause::value}, {1, 4, Cause::value}, {3, 4, Cause::value}};
  const CriticalPath path = critical_path(units, dependencies);
  EXPECT_THAT(path.units, ElementsAre(1, 4));
  EXPECT_EQ(path.us, 12);
}

TEST(CriticalPath, TakesTheFirstCapturedOfTwoThatAreAsLong) {
  const std::vector<Unit> units = {unit({}), unit({}), unit({}), unit({})};
  const std::vector<Dependency> dependencies = {{1, 2, Cause::value}, {0, 2, Cause::value}, {0, 3, Cause::value}};
  EXPECT_THAT(critical_path(units, dependencies).units, ElementsAre(0, 2));
}

TEST(CriticalPath, IsAsLongAsTheLongestChainOfConflicts) {
  RandomSteps steps(3);
  for (int round = 0; round < 500; ++round) {
    const std::vector<Unit> units = steps.next();
    const CriticalPath path = critical_path(units, find_dependencies(units));
    ASSERT_EQ(path.us, pianola::testing::longest_path_us(units, pianola::testing::conflicts(units)))
        << to_string(units);
    double us = 0;
    for (const std::uint32_t position : path.units) us += units[position].cost_us;
    ASSERT_EQ(path.us, us);
  }
}

}  // namespace
}  // namespace pianola::parallel::dependencies_test
