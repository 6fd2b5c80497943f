#include <pianola/memory/capture_room.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pianola::memory::capture_room_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kGiB = 1ULL << 30U;

TEST(CaptureRoomTest, APoolTakesNothingOfWhatTorchHoldsUnused) {
  const FreeMemory left{.of_driver = 30 * kGiB, .cached = 20 * kGiB, .returnable = 5 * kGiB};
  EXPECT_TRUE(fits({.of_driver = 30 * kGiB}, left));
  EXPECT_FALSE(fits({.of_driver = 31 * kGiB}, left));
  EXPECT_TRUE(would_fit({.of_driver = 35 * kGiB}, left)) << "once whole segments are given back";
  EXPECT_FALSE(would_fit({.of_driver = 36 * kGiB}, left)) << "pieces are not given back";
}

TEST(CaptureRoomTest, CopiesDo) {
  const FreeMemory left{.of_driver = 30 * kGiB, .cached = 20 * kGiB};
  EXPECT_TRUE(fits({.of_driver = 30 * kGiB, .copies = 20 * kGiB}, left));
  EXPECT_FALSE(fits({.of_driver = 30 * kGiB, .copies = 21 * kGiB}, left));
}

TEST(CaptureRoomTest, TheVerdictHasTheNumbers) {
  const CaptureMemory capture{.of_driver = 40 * kGiB, .copies = kGiB};
  EXPECT_EQ(
      room_verdict(capture, {.of_driver = 60 * kGiB}),
      "It fits: a capture takes 40.0 GiB of the driver and 1.0 GiB for copies, and the driver has 60.0 GiB left.");
  EXPECT_THAT(room_verdict(capture, {.of_driver = 30 * kGiB, .cached = 20 * kGiB, .returnable = 20 * kGiB}),
              AllOf(HasSubstr("It does not fit yet: a capture takes"),
                    HasSubstr("torch.cuda.empty_cache() gives 20.0 GiB back")));
  EXPECT_THAT(room_verdict(capture, {.of_driver = 30 * kGiB}), HasSubstr("It does not fit: a capture takes"));
  EXPECT_EQ(room_numbers(capture, {}), "a capture takes 40.0 GiB of the driver and 1.0 GiB for copies");
}

}  // namespace
}  // namespace pianola::memory::capture_room_test
