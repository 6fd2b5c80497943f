#include <pianola/graph/hang_watch.hpp>

#include <pianola/core/error.hpp>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace pianola::graph::hang_watch_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Switch final : ReplayEnd {
  bool has_come() override { return on; }
  std::atomic<bool> on = false;
};

/// A rank: its watch, and what became of it.
struct Rank {
  Rank(int number, int size, const c10::intrusive_ptr<c10d::Store>& store, bool acts = true)
      : graph(std::make_shared<WatchedGraph>(
            WatchedGraph{.holds = "1 x c10d::allreduce_, the first at train.py:" + std::to_string(10 + number),
                         .timeout = milliseconds(500),
                         .groups = {{.name = "all",
                                     .rank = number,
                                     .size = size,
                                     .store = store,
                                     .abort = [flag = aborted] { *flag = true; }}}})),
        watch({.interval = milliseconds(5),
               .patience = milliseconds(500),
               .grace = milliseconds(50),
               .acts = acts,
               .say = [this](const std::string& text) { said += text; },
               .end_process = [this] { ended = true; }}) {}

  std::shared_ptr<Switch> launch() {
    auto end = std::make_shared<Switch>();
    watch.launched(graph, end);
    return end;
  }
  std::string error() {
    try {
      watch.check();
    } catch (const CommunicationError& raised) {
      return raised.what();
    }
    return "";
  }
  // Until it has something to say of.
  std::string wait_for_error() {
    for (int i = 0; i < 1000 && error().empty(); ++i) std::this_thread::sleep_for(milliseconds(5));
    return error();
  }

  // Told by a thread that nobody waits for: it may outlive the test.
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> ended = false;
  std::string said;
  std::shared_ptr<WatchedGraph> graph;
  HangWatch watch;
};

void wait_until(const std::atomic<bool>& flag) {
  for (int i = 0; i < 1000 && !flag; ++i) std::this_thread::sleep_for(milliseconds(5));
}

TEST(HangWatch, LetsReplaysBeThatEnd) {
  Rank rank(0, 1, c10::make_intrusive<c10d::HashStore>());
  for (int i = 0; i < 70; ++i) {  // longer than the timeout, all together
    const auto end = rank.launch();
    std::this_thread::sleep_for(milliseconds(10));
    end->on = true;
  }
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_EQ(rank.error(), "");
  rank.watch.stop();
  EXPECT_EQ(rank.said, "");
}

TEST(HangWatch, LetsReplaysBeThatWaitBehindOthers) {
  Rank rank(0, 1, c10::make_intrusive<c10d::HashStore>());
  std::vector<std::shared_ptr<Switch>> ends;
  for (int i = 0; i < 40; ++i) ends.push_back(rank.launch());
  for (const auto& end : ends) {
    std::this_thread::sleep_for(milliseconds(20));
    end->on = true;
  }
  EXPECT_EQ(rank.error(), "");
}

TEST(HangWatch, NamesTheGraphAndWhatOtherRanksDo) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Rank waits(0, 3, store), idle(1, 3, store);
  idle.launch()->on = true;
  (void)waits.launch();
  EXPECT_THAT(
      waits.wait_for_error(),
      AllOf(HasSubstr("rank 0 waits in a replay (number 1 of this process) of a graph that holds 1 x c10d::allreduce_"),
            HasSubstr("train.py:10"), HasSubstr("rank 1 waits in no replay: the last of 1 ended"),
            HasSubstr("rank 2 says nothing: it has ended, or has replayed nothing yet")));
  wait_until(*waits.aborted);
  EXPECT_TRUE(*waits.aborted);
  EXPECT_FALSE(*idle.aborted);
  EXPECT_EQ(idle.error(), "");
}

TEST(HangWatch, NamesBothWhereTwoWaitForEachOther) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Rank one(0, 2, store), other(1, 2, store);
  (void)one.launch();
  (void)other.launch();
  EXPECT_THAT(one.wait_for_error(), AllOf(HasSubstr("train.py:10"), HasSubstr("train.py:11")));
  EXPECT_THAT(other.wait_for_error(), AllOf(HasSubstr("train.py:10"), HasSubstr("train.py:11")));
}

TEST(HangWatch, EndsAProcessThatHangsAllTheSame) {
  Rank rank(0, 1, c10::make_intrusive<c10d::HashStore>());
  (void)rank.launch();
  wait_until(rank.ended);
  rank.watch.stop();
  EXPECT_TRUE(rank.ended);
  EXPECT_THAT(rank.said, HasSubstr("this process is ended"));
}

TEST(HangWatch, IsDoneWithAGroupThatEnds) {
  Rank rank(0, 1, c10::make_intrusive<c10d::HashStore>());
  const auto end = rank.launch();
  EXPECT_THAT(rank.wait_for_error(), HasSubstr("rank 0 waits"));
  rank.watch.forget("another");
  EXPECT_NE(rank.error(), "");
  rank.watch.forget("all");
  EXPECT_EQ(rank.error(), "");
  end->on = true;
  (void)rank.launch();  // of a group that is made anew
  EXPECT_THAT(rank.wait_for_error(), HasSubstr("number 2 of this process"));
}

TEST(HangWatch, HasNoThreadInAForkedChild) {
  Rank rank(0, 1, c10::make_intrusive<c10d::HashStore>());
  rank.launch()->on = true;
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);  // ends it where it waits for a thread that is not there
    rank.watch.stop();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(HangWatch, OnlyLooksOnWhereItIsToldTo) {
  Rank rank(0, 1, c10::make_intrusive<c10d::HashStore>(), /*acts=*/false);
  (void)rank.launch();
  EXPECT_THAT(rank.wait_for_error(), HasSubstr("rank 0 waits"));
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_FALSE(*rank.aborted);
  EXPECT_FALSE(rank.ended);
}

TEST(HangWatch, DoesWithoutAStore) {
  Rank rank(0, 2, nullptr);
  (void)rank.launch();
  EXPECT_THAT(rank.wait_for_error(), HasSubstr("it has not ended in 0."));
}

}  // namespace
}  // namespace pianola::graph::hang_watch_test
