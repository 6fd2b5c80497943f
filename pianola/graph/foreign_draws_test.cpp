#include <pianola/graph/foreign_draws.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace pianola::graph::foreign_draws_test {
namespace {

void draw(const at::Generator& generator) { at::empty({4}).uniform_(0, 1, generator); }

// Where the next draw of all threads waits after it has begun, until it is let go.
class DrawStopper {
 public:
  DrawStopper() : callback_(at::addGlobalCallback(at::RecordFunctionCallback(&on_begin))) {
    has_begun = false;
    may_go_on = false;
  }
  DrawStopper(const DrawStopper&) = delete;
  DrawStopper& operator=(const DrawStopper&) = delete;
  ~DrawStopper() {
    let_go();
    at::removeCallback(callback_);
  }
  static void wait_for_draw() { has_begun.wait(false); }
  static void let_go() {
    may_go_on = true;
    may_go_on.notify_all();
  }

 private:
  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& span) {
    if (std::string_view(span.name()) != "aten::uniform_") return nullptr;
    has_begun = true;
    has_begun.notify_all();
    may_go_on.wait(false);
    return nullptr;
  }
  static inline std::atomic<bool> has_begun, may_go_on;
  at::CallbackHandle callback_;
};

TEST(ForeignDraws, CountDrawsOfOtherThreads) {
  const at::Generator generator = at::detail::createCPUGenerator(1), other = at::detail::createCPUGenerator(1);
  const CaptureThreads capture;
  ForeignDraws draws;
  const std::size_t watched = draws.watch(generator);
  const ForeignDraws::Count before = draws.count(watched);
  std::thread(draw, other).join();
  EXPECT_FALSE(draws.count(watched).is_after(before)) << "drawn from another generator";
  draw(generator);
  EXPECT_FALSE(draws.count(watched).is_after(before)) << "drawn by the capture itself";
  std::thread(draw, generator).join();
  EXPECT_TRUE(draws.count(watched).is_after(before));
}

TEST(ForeignDraws, CountADrawThatRunsWhenTheWatchOpens) {
  const at::Generator generator = at::detail::createCPUGenerator(1);
  { const ForeignDraws earlier; }  // draws are listed while captures follow each other
  const DrawStopper stopper;
  std::thread drawing(draw, generator);
  DrawStopper::wait_for_draw();
  const CaptureThreads capture;
  ForeignDraws draws;
  const std::size_t watched = draws.watch(generator);
  const ForeignDraws::Count during = draws.count(watched);
  EXPECT_EQ(during.begun, 1U);
  EXPECT_EQ(during.ended, 0U);
  DrawStopper::let_go();
  drawing.join();
  EXPECT_TRUE(draws.count(watched).is_after(during));
  EXPECT_FALSE(draws.count(watched).is_after(draws.count(watched)));
}

TEST(ForeignDraws, CountAReplayThatRunsWhenTheWatchOpens) {
  const std::vector<at::Generator> generators = {at::detail::createCPUGenerator(1)};
  auto replay = std::make_unique<ForeignDraws::Unseen>(generators);
  const CaptureThreads capture;
  ForeignDraws draws;
  const std::size_t watched = draws.watch(generators.front());
  const ForeignDraws::Count during = draws.count(watched);
  EXPECT_EQ(during.begun, 1U);
  replay.reset();
  EXPECT_EQ(draws.count(watched).ended, 1U);
}

// What another thread holds when a process forks, nobody in the child lets go.
TEST(ForeignDraws, CountInAChildThatWasForkedWhileOthersDraw) {
  const std::vector<at::Generator> generators = {at::detail::createCPUGenerator(1)};
  const ForeignDraws parents;
  const std::jthread busy([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) const ForeignDraws::Unseen replay(generators);
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      const CaptureThreads capture;
      ForeignDraws draws;
      const std::size_t watched = draws.watch(generators.front());
      const bool none_runs = draws.count(watched).begun == 0;
      std::thread([&] { const ForeignDraws::Unseen replay(generators); }).join();
      _exit(none_runs && draws.count(watched).ended == 1 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
}

}  // namespace
}  // namespace pianola::graph::foreign_draws_test
