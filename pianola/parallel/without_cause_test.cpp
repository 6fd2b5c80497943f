#include <pianola/parallel/without_cause.hpp>

#include <pianola/parallel/testing/reference.hpp>
#include <pianola/parallel/testing/steps.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::parallel::without_cause_test {
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

constexpr ByteSpan kBytes{0x1000, 0x2000};

std::string left_without(Cause cause, const std::vector<Unit>& units) {
  return to_string(transitive_reduction(find_dependencies_without(cause, units), units.size()));
}

TEST(WithoutCause, LetsTensorsThatShareMemoryGo) {
  const std::vector<Unit> units = {unit({write(kBytes, storage(0))}), unit({read(kBytes, storage(0))}),
                                   unit({write(kBytes, storage(1))}), unit({read(kBytes, storage(1))})};
  EXPECT_EQ(left_without(Cause::reuse, units), "0>1 value, 2>3 value");
}

TEST(WithoutCause, KeepsValuesThatWereOrderedByWayOfReuse) {
  // Unit 1 writes into storage 0 by an address: only reuse by name, and the only link between units 0 and 2.
  const std::vector<Unit> units = {unit({write(kBytes, storage(0))}), unit({write(kBytes)}),
                                   unit({read(kBytes, storage(0))})};
  EXPECT_EQ(left_without(Cause::reuse, units), "0>2 value, 1>2 value");
}

TEST(WithoutCause, TellsStoragesApartWhereverTheyLie) {
  const std::vector<Unit> units = {unit({write({0, 8}, storage(0)), write({100, 200}, storage(1))}),
                                   unit({read({100, 108}, storage(0))}), unit({write({0, 8}, storage(1))}),
                                   unit({write({0, 4}, storage(0))})};
  EXPECT_EQ(left_without(Cause::reuse, units), "0>1 value, 0>3 value");
}

TEST(WithoutCause, LetsUsersOfAWorkspaceGo) {
  const Access scratch = write(kBytes, nullptr, Memory::workspace);
  const ByteSpan result{0, 8};
  const std::vector<Unit> units = {unit({scratch, write(result)}), unit({scratch}), unit({scratch, read(result)})};
  EXPECT_EQ(left_without(Cause::workspace, units), "0>2 value");
}

TEST(WithoutCause, OrdersBarriersByTheirBytesAlone) {
  Unit foreign = barrier("foreign nodes");
  foreign.accesses = {read(kBytes)};
  const std::vector<Unit> units = {unit({write(kBytes)}), unit({}), foreign, unit({read(kBytes)})};
  EXPECT_EQ(left_without(Cause::barrier, units), "0>2 value, 0>3 value");
}

TEST(WithoutCause, ChangesNothingForValues) {
  const std::vector<Unit> units = {unit({write(kBytes)}), unit({read(kBytes)})};
  EXPECT_EQ(left_without(Cause::value, units), "0>1 value");
}

// Whether both touch bytes of one made storage, one of them writing.
bool share_storage(const Unit& one, const Unit& other) {
  for (const Access& left : one.accesses) {
    for (const Access& right : other.accesses) {
      const bool made = left.memory == Memory::made && right.memory == Memory::made;
      const bool same = left.owner != nullptr && left.owner == right.owner;
      if (made && same && (left.write || right.write) && left.bytes.overlaps(right.bytes)) return true;
    }
  }
  return false;
}

// By the rules for each pair: one storage, or another cause than reuse.
Matrix ordered_without_reuse(const std::vector<Unit>& units) {
  Matrix ordered(units.size(), std::vector<bool>(units.size()));
  for (std::size_t from = 0; from < units.size(); ++from) {
    for (std::size_t to = from + 1; to < units.size(); ++to) {
      const auto cause = pianola::testing::direct_cause(units, from, to);
      ordered[from][to] = share_storage(units[from], units[to]) || (cause && *cause != Cause::reuse);
    }
  }
  return closure(ordered);
}

TEST(WithoutCause, KeepsWhatBelongsToOneStorageOrHasAnotherCauseThanReuse) {
  RandomSteps steps(21);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<Unit> units = steps.next();
    const std::vector<Dependency> left = find_dependencies_without(Cause::reuse, units);
    ASSERT_EQ(closure(std::span(left), units.size()), ordered_without_reuse(units)) << to_string(units);
  }
}

TEST(WithoutCause, NeverOrdersMoreThanBefore) {
  RandomSteps steps(22);
  for (int round = 0; round < 1000; ++round) {
    const std::vector<Unit> units = steps.next();
    const Matrix before = closure(pianola::testing::conflicts(units));
    for (const Cause cause : {Cause::reuse, Cause::workspace, Cause::barrier}) {
      for (const auto& [from, to, kind] : find_dependencies_without(cause, units)) {
        ASSERT_TRUE(before[from][to]) << to_string(units);
        ASSERT_NE(kind, cause) << to_string(units);
      }
    }
  }
}

}  // namespace
}  // namespace pianola::parallel::without_cause_test
