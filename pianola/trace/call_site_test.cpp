#include <pianola/trace/call_site.hpp>

#include <gmock/gmock.h>

#include <functional>
#include <source_location>

// Outside pianola::trace, whose frames a call site leaves out.
namespace user {

using pianola::trace::CallSite;

std::string expected_line;

std::string here(std::source_location place = std::source_location::current()) {
  return "call_site_test.cpp:" + std::to_string(place.line());
}

__attribute__((noinline)) CallSite train_step() {
  CallSite site = (expected_line = here(), CallSite::here());
  return site;
}

namespace {
__attribute__((noinline)) CallSite hidden_step(int /*unused*/) {
  CallSite site = (expected_line = here(), CallSite::here());
  return site;
}
}  // namespace

struct Model {
  __attribute__((noinline)) CallSite forward() const { return (expected_line = here(), CallSite::here()); }
};

inline __attribute__((always_inline)) CallSite inlined_step() { return (expected_line = here(), CallSite::here()); }

}  // namespace user

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CallSite, NamesTheFunctionTheFileAndTheLine) {
  const auto site = user::train_step();
  EXPECT_EQ(site.describe(), "user::train_step at " + user::expected_line);
}

TEST(CallSite, NamesAFunctionOfAnAnonymousNamespace) {
  const auto site = user::hidden_step(1);
  EXPECT_EQ(site.describe(), "user::hidden_step at " + user::expected_line);
}

TEST(CallSite, NamesAMethod) {
  const auto site = user::Model().forward();
  EXPECT_EQ(site.describe(), "user::Model::forward at " + user::expected_line);
}

TEST(CallSite, NamesAFunctionThatWasInlined) {
  const auto site = user::inlined_step();
  EXPECT_EQ(site.describe(), "user::inlined_step at " + user::expected_line);
}

TEST(CallSite, OfALambdaNamesTheFunctionAroundItAndTheLineInside) {
  std::string line;
  const std::function<user::CallSite()> step = [&] { return (line = user::here(), user::CallSite::here()); };
  const auto site = step();
  EXPECT_THAT(site.describe(), HasSubstr("OfALambdaNamesTheFunctionAroundItAndTheLineInside"));
  EXPECT_THAT(site.describe(), HasSubstr(line));
  EXPECT_THAT(site.describe(), Not(HasSubstr("std::")));
}

TEST(CallSite, ThatWasNeverTakenIsEmpty) { EXPECT_EQ(user::CallSite().describe(), ""); }

}  // namespace
