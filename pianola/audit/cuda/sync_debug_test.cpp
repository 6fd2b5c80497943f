#include <pianola/audit/cuda/sync_debug.hpp>

#include <pianola/audit/cuda/caller.hpp>
#include <pianola/trace/call_site.hpp>

#include <gmock/gmock.h>

#include <source_location>
#include <string>
#include <vector>

// Outside of Pianola's namespaces, as a step is.
namespace user {
namespace {

// What torch does before it waits for a stream.
__attribute__((noinline)) int waiting_step() {
  const int line = std::source_location::current().line() + 1;
  c10::cuda::warn_or_error_on_sync();
  return line;
}

}  // namespace
}  // namespace user

namespace pianola::auditing::sync_debug_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Collector final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

TEST(SyncDebug, TellsOfWaitsAndPassesOtherWarningsOn) {
  Collector outer;
  const c10::WarningUtils::WarningHandlerGuard guard(&outer);
  int waits = 0;
  {
    const SyncDebug debug([&] { ++waits; });
    EXPECT_EQ(c10::cuda::warning_state().get_sync_debug_mode(), c10::cuda::SyncDebugMode::L_WARN);
    user::waiting_step();
    TORCH_WARN("something else");
  }
  EXPECT_EQ(waits, 1);
  ASSERT_EQ(outer.texts.size(), 1U);
  EXPECT_THAT(outer.texts[0], HasSubstr("something else"));
}

TEST(SyncDebug, PutsModeAndHandlerBack) {
  Collector outer;
  const c10::WarningUtils::WarningHandlerGuard guard(&outer);
  {
    const SyncDebug debug([] {});
  }
  EXPECT_EQ(c10::cuda::warning_state().get_sync_debug_mode(), c10::cuda::SyncDebugMode::L_DISABLED);
  EXPECT_EQ(c10::WarningUtils::get_warning_handler(), &outer);
}

TEST(CallerOfTorch, IsTheLineThatWaits) {
  CallerStack stack;
  int line = 0;
  {
    const SyncDebug debug([&] { stack = caller_of_torch(); });
    line = user::waiting_step();
  }
  EXPECT_EQ(stack.caller, Caller::torch);
  const SourcePlace place = trace::CallSite::of(stack.frames, stack.script_is_safe).place();
  EXPECT_EQ(place.function, "user::waiting_step");
  EXPECT_THAT(place.file, HasSubstr("sync_debug_test.cpp"));
  EXPECT_EQ(place.line, line);
}

TEST(CallerOfTorch, IsUnknownWhereTheWarningIsARepetition) {
  CallerStack stack{.caller = Caller::other};
  const SyncDebug debug([&] { stack = caller_of_torch(); });
  // As autograd gives the warnings of its threads to the thread that called backward().
  c10::warn(c10::Warning(c10::UserWarning(), {"", "", 0}, "called a synchronizing CUDA operation", false));
  EXPECT_EQ(stack.caller, Caller::unknown);
}

TEST(CallerOfCuda, IsUnknownOutsideOfACallOfCuda) {
  const CallerStack stack = caller_of_cuda();
  EXPECT_EQ(stack.caller, Caller::unknown);
  EXPECT_TRUE(stack.frames.empty());
}

}  // namespace
}  // namespace pianola::auditing::sync_debug_test
