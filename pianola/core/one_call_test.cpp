#include <pianola/core/one_call.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace pianola::one_call_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal_of(OneCall& object) {
  try {
    const OneCall::Scope call(object, "replay()", "a graph");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(OneCall, AllowsOneAfterTheOther) {
  OneCall object;
  EXPECT_EQ(refusal_of(object), "");
  EXPECT_EQ(refusal_of(object), "");
  EXPECT_FALSE(object.is_ours());
}

TEST(OneCall, RefusesACallInsideAnother) {
  OneCall object, other;
  {
    const OneCall::Scope call(object, "capture()", "a graph");
    EXPECT_TRUE(object.is_ours());
    EXPECT_EQ(refusal_of(other), "");
    EXPECT_THAT(
        refusal_of(object),
        AllOf(HasSubstr("replay() was called on a graph inside another call of the same one"), HasSubstr("fix:")));
    EXPECT_TRUE(object.is_ours()) << "the refused call does not end the other";
  }
  EXPECT_EQ(refusal_of(object), "");
}

TEST(OneCall, RefusesACallOfAnotherThread) {
  OneCall object;
  const OneCall::Scope call(object, "capture()", "a graph");
  std::string message;
  std::thread([&] {
    EXPECT_FALSE(object.is_ours());
    message = refusal_of(object);
  }).join();
  EXPECT_THAT(message, AllOf(HasSubstr("while another thread is in a call of it"), HasSubstr("take a lock")));
}

TEST(OneCall, LetsOneThreadInAtATime) {
  OneCall object;
  std::atomic<int> inside = 0, most = 0, passed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20000; ++k) {
        try {
          const OneCall::Scope call(object, "replay()", "a graph");
          const int now = ++inside;
          if (now > most) most = now;
          --inside;
          ++passed;
        } catch (const UsageError&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_GT(passed, 0);
}

TEST(OneCall, ACallWaitsForWhoeverLooks) {
  OneCall object;
  std::atomic<bool> stop = false;
  std::vector<std::thread> onlookers;
  for (int i = 0; i < 2; ++i) {
    onlookers.emplace_back([&] {
      while (!stop) {
        try {
          const OneCall::Look look(object, "memory()", "a graph");
        } catch (const UsageError&) {  // a call was running
        }
      }
    });
  }
  for (int k = 0; k < 20000; ++k) ASSERT_EQ(refusal_of(object), "");
  stop = true;
  for (std::thread& thread : onlookers) thread.join();
}

TEST(OneCall, RefusesALookIntoACall) {
  OneCall object;
  const OneCall::Scope call(object, "replay()", "a graph");
  std::string message;
  std::thread([&] {
    try {
      const OneCall::Look look(object, "memory()", "a graph");
    } catch (const UsageError& error) {
      message = error.what();
    }
  }).join();
  EXPECT_THAT(message, HasSubstr("memory() was called on a graph while another thread is in a call of it"));
}

}  // namespace
}  // namespace pianola::one_call_test
