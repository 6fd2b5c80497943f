#include <pianola/profile/record/activity_buffers.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

namespace pianola::profiling::activity_buffers_test {
namespace {

using Clock = std::chrono::steady_clock;

TEST(ActivityBuffersTest, ThereAreNoMoreThanAllowed) {
  ActivityBuffers buffers({.bytes = 64, .most = 3, .at_once = 1});
  EXPECT_EQ(buffers.count(), 1U);
  std::set<std::uint8_t*> all = {buffers.request(), buffers.request(), buffers.request()};
  EXPECT_EQ(all.size(), 3U);
  EXPECT_EQ(all.count(nullptr), 0U);
  EXPECT_EQ(buffers.request(), nullptr);
  std::uint8_t* first = *all.begin();
  buffers.complete(first, 10);
  EXPECT_EQ(buffers.request(), nullptr) << "its records are not read yet";
  const auto full = buffers.wait_until(Clock::now());
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->data, first);
  EXPECT_EQ(full->valid_bytes, 10U);
  buffers.recycle(full->data);
  EXPECT_EQ(buffers.request(), first);
  EXPECT_EQ(buffers.count(), 3U);
  for (std::uint8_t* data : all) buffers.complete(data, 0);  // so that they are freed
}

TEST(ActivityBuffersTest, TheyAreHandedOutZeroed) {
  ActivityBuffers buffers({.bytes = 64, .most = 1, .at_once = 1});
  std::uint8_t* data = buffers.request();
  EXPECT_EQ(std::count(data, data + 64, 0), 64);
  std::fill(data, data + 64, std::uint8_t{7});
  buffers.complete(data, 8);
  buffers.recycle(buffers.wait_until(Clock::now())->data);
  data = buffers.request();
  EXPECT_EQ(std::count(data, data + 64, 0), 64);
  buffers.complete(data, 0);
}

TEST(ActivityBuffersTest, FullOnesComeInTheirOrder) {
  ActivityBuffers buffers({.bytes = 64, .most = 3, .at_once = 3});
  std::uint8_t* a = buffers.request();
  std::uint8_t* b = buffers.request();
  buffers.complete(b, 1);
  buffers.complete(a, 2);
  EXPECT_EQ(buffers.wait_until(Clock::now())->data, b);
  EXPECT_EQ(buffers.wait_until(Clock::now())->data, a);
  EXPECT_FALSE(buffers.wait_until(Clock::now()).has_value());
  buffers.recycle(a);
  buffers.recycle(b);
}

TEST(ActivityBuffersTest, WaitingEndsWithABufferOrAWakeUp) {
  ActivityBuffers buffers({.bytes = 64, .most = 2, .at_once = 2});
  std::uint8_t* data = buffers.request();
  const auto late = Clock::now() + std::chrono::minutes(10);
  std::thread completes([&] { buffers.complete(data, 5); });
  EXPECT_TRUE(buffers.wait_until(late).has_value());
  completes.join();
  buffers.recycle(data);
  buffers.wake();
  EXPECT_FALSE(buffers.wait_until(late).has_value());
}

}  // namespace
}  // namespace pianola::profiling::activity_buffers_test
