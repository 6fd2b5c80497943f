#include <pianola/core/resident_memory.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace pianola::resident_memory_test {
namespace {

TEST(ResidentMemoryTest, GrowsWithMemoryThatIsWritten) {
  constexpr std::size_t kBytes = std::size_t{64} << 20U;
  const std::size_t before = resident_memory();
  const std::vector<char> written(kBytes, 1);
  EXPECT_GE(resident_memory() + (std::size_t{4} << 20U), before + kBytes) << static_cast<int>(written.back());
}

}  // namespace
}  // namespace pianola::resident_memory_test
