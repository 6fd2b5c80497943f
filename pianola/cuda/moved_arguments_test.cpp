#include <pianola/cuda/moved_arguments.hpp>

#include <pianola/cuda/fake_kernels.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace pianola::moved_arguments_test {
namespace {

constexpr std::uint64_t kCache = 0x7f00'0000'0000, kTable = 0x7f00'1000'0000, kRow = 128;

// An operation that launches one kernel of a number, its length, and three addresses, and copies some bytes.
class MovedArgumentsTest : public ::testing::Test {
 protected:
  struct Arguments {
    std::uint64_t length = 64;
    std::uint64_t cache = kCache;
    std::uint64_t end_of_cache_row = kCache + kRow;
    std::uint64_t table = kTable;
    std::uint32_t dimensions = 1;
    std::uint32_t strides[3] = {};
  };

  static std::vector<Place> places(std::uint64_t cache_row, std::uint64_t table_row = 0) {
    return {{.address = kCache + cache_row * kRow, .memory = {.begin = kCache, .end = kCache + 4096}},
            {.address = kTable + table_row * kRow, .memory = {.begin = kTable, .end = kTable + 4096}}};
  }
  static Arguments arguments(std::uint64_t cache_row, std::uint64_t table_row = 0) {
    const std::uint64_t cache = kCache + cache_row * kRow;
    return {.length = 64, .cache = cache, .end_of_cache_row = cache + kRow, .table = kTable + table_row * kRow};
  }

  CUgraphNode kernel(const Arguments& arguments) { return kernels_.launch(add_, arguments); }
  CUgraphNode copy(std::uint64_t from, std::uint64_t to) {
    FakeDriver::Node node;
    node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    node.memcpy.srcMemoryType = node.memcpy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    node.memcpy.srcDevice = from;
    node.memcpy.dstDevice = to;
    node.memcpy.WidthInBytes = 64;
    node.memcpy.Height = node.memcpy.Depth = 1;
    return kernels_.graph.add(std::move(node));
  }
  std::vector<NodeChange> captured(CUgraphNode node) { return kernels_.between(captured_, node); }
  // What captures show, one after the other.
  void learn(std::initializer_list<std::pair<std::uint64_t, std::uint64_t>> rows) {
    for (const auto& [cache, table] : rows) learn(kernel(arguments(cache, table)), places(cache, table));
  }
  void learn(CUgraphNode node, const std::vector<Place>& places, CUgraphNode again = nullptr) {
    std::vector<NodeChange> changes = captured(node);
    if (last_.empty()) {
      moved.note(places);
    } else {
      moved.learn(last_, changes, captured(again == nullptr ? node : again), places);
    }
    last_ = std::move(changes);
  }
  Arguments given() { return kernels_.given(last_[0], captured_); }

  FakeDriver::Function add_{.symbol = "add", .parameters = {{0, sizeof(Arguments)}}};
  FakeKernels<Arguments> kernels_;
  CUgraphNode captured_ = kernel({});
  std::vector<NodeChange> last_;
  MovedArguments moved;
};

TEST_F(MovedArgumentsTest, FollowsWhatThreeCapturesShowed) {
  learn({{0, 0}, {1, 0}, {2, 0}});
  EXPECT_FALSE(moved.follow(last_, places(3)));
  learn({{5, 0}});
  ASSERT_TRUE(moved.follow(last_, places(9)));
  const Arguments now = given();
  EXPECT_EQ(now.length, 64U);
  EXPECT_EQ(now.cache, kCache + 9 * kRow);
  EXPECT_EQ(now.end_of_cache_row, kCache + 10 * kRow);
  EXPECT_EQ(now.table, kTable);
  ASSERT_TRUE(moved.follow(last_, places(2)));
  EXPECT_EQ(given().cache, kCache + 2 * kRow);
}

TEST_F(MovedArgumentsTest, TwoThatMovedByAsMuchAreToldApartByTheirMemory) {
  learn({{0, 0}, {1, 1}, {2, 2}, {3, 3}});
  ASSERT_TRUE(moved.follow(last_, places(7, 1)));
  EXPECT_EQ(given().cache, kCache + 7 * kRow);
  EXPECT_EQ(given().table, kTable + kRow);
}

TEST_F(MovedArgumentsTest, AnArgumentThatNeverMovedIsNotFollowed) {
  learn({{0, 0}, {1, 0}, {2, 0}, {3, 0}});
  EXPECT_FALSE(moved.follow(last_, places(4, 1)));
  EXPECT_TRUE(moved.follow(last_, places(4, 0)));
}

TEST_F(MovedArgumentsTest, AnAlignmentThatNoCaptureHadIsNotFollowed) {
  learn({{0, 0}, {1, 0}, {2, 0}, {3, 0}});
  std::vector<Place> odd = places(4);
  odd[0].address += 4;
  EXPECT_FALSE(moved.follow(last_, odd));
}

TEST_F(MovedArgumentsTest, AWordThatChangesWithoutATensorEndsIt) {
  learn({{0, 0}, {1, 0}, {2, 0}, {3, 0}});
  Arguments longer = arguments(4);
  longer.length = 65;
  learn(kernel(longer), places(4));
  EXPECT_FALSE(moved.follow(last_, places(5)));
}

TEST_F(MovedArgumentsTest, AWordThatMovesByMoreThanItsTensorEndsIt) {
  learn({{0, 0}, {1, 0}, {2, 0}});
  Arguments further = arguments(3);
  further.end_of_cache_row += kRow;
  learn(kernel(further), places(3));
  learn({{4, 0}});
  EXPECT_FALSE(moved.follow(last_, places(5)));
}

TEST_F(MovedArgumentsTest, ArgumentsThatShareMemoryAreCapturedAnew) {
  const auto shared = [](std::uint64_t row) {
    std::vector<Place> both = places(row);
    both[1].memory = both[0].memory;
    return both;
  };
  for (const std::uint64_t row : {0, 1, 2, 3, 4}) learn(kernel(arguments(row)), shared(row));
  EXPECT_FALSE(moved.follow(last_, shared(5)));
}

TEST_F(MovedArgumentsTest, WhatNobodyFilledIsNoArgument) {
  std::uint32_t stack = 7;
  const auto with_open_slots = [&](std::uint64_t row) {
    Arguments open = arguments(row);
    for (std::uint32_t& stride : open.strides) stride = (stack *= 2654435761U);
    return kernel(open);
  };
  for (const std::uint64_t row : {0, 1, 2, 3}) learn(with_open_slots(row), places(row), with_open_slots(row));
  ASSERT_TRUE(moved.follow(last_, places(8)));
  EXPECT_EQ(given().cache, kCache + 8 * kRow);
  EXPECT_EQ(given().dimensions, 1U);
}

TEST_F(MovedArgumentsTest, ACopyFollowsAsWell) {
  captured_ = copy(kTable, kCache);
  for (const std::uint64_t row : {0, 1, 2, 3}) learn(copy(kTable, kCache + row * kRow), places(row));
  ASSERT_TRUE(moved.follow(last_, places(6)));
  last_[0].apply(nullptr, captured_, kernels_.fake.table());
  EXPECT_EQ(kernels_.fake.copies_set.back().params.dstDevice, kCache + 6 * kRow);
  EXPECT_EQ(kernels_.fake.copies_set.back().params.srcDevice, kTable);
}

}  // namespace
}  // namespace pianola::moved_arguments_test
