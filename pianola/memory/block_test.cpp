#include <pianola/memory/block.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace pianola::memory::block_test {
namespace {

TEST(BlockTest, ThePeakIsTheMostBytesInUseAtATime) {
  EXPECT_EQ(peak_bytes({}), 0U);
  const std::vector<Block> blocks = {{.made = 0, .freed = 2, .bytes = 100},
                                     {.made = 1, .freed = 4, .bytes = 30},
                                     {.made = 2, .freed = 3, .bytes = 90},
                                     {.made = 5, .bytes = 7}};
  EXPECT_EQ(peak_of(blocks).at, 1);
  EXPECT_EQ(peak_bytes(blocks), 130U) << "what is freed when another one is made does not count with it";
}

TEST(BlockTest, AnEmptyBlockTakesAUnit) {
  EXPECT_EQ(in_whole_units(0), 512U);
  EXPECT_EQ(in_whole_units(1), 512U);
  EXPECT_EQ(in_whole_units(512), 512U);
  EXPECT_EQ(in_whole_units(513), 1024U);
}

}  // namespace
}  // namespace pianola::memory::block_test
