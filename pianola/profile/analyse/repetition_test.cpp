#include <pianola/profile/analyse/repetition.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>

namespace pianola::profiling::repetition_test {
namespace {

using ::testing::ElementsAre;

// A letter is one kernel of 1 us, and 1 us later the next. '.' is a pause of 20 us, '!' an optimizer's step that begins
// before the next kernel and ends after it, '(' and ')' the begin and end of a module's call.
IssueSequence sequence_of(std::string_view text) {
  IssueSequence sequence;
  std::map<char, std::uint32_t> symbols;
  Nanoseconds time = 0;
  std::uint32_t modules = 0;
  bool in_module = false;
  bool step = false;
  for (const char c : text) {
    if (c == '.') time += 20'000;
    if (c == '(') ++modules;
    if (c == '(' || c == ')') in_module = c == '(';
    if (c == '!') step = true;
    if (c < 'A') continue;
    const bool stepped = !sequence.items.empty() && sequence.items.back().optimizer_began;
    IssuedItem item{.host = {time, time + 1000}, .device = {time, time + 1000}};
    item.symbol = symbols.try_emplace(c, static_cast<std::uint32_t>(symbols.size())).first->second;
    item.module = in_module ? modules : 0;
    item.optimizer_began = step;
    item.optimizer_ended = stepped;
    sequence.items.push_back(item);
    sequence.optimizer_steps += step ? 1 : 0;
    step = false;
    time += 2000;
  }
  sequence.symbols = static_cast<std::uint32_t>(symbols.size());
  return sequence;
}

std::string times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// How many items a typical repetition has; 0 where nothing repeats.
std::size_t period(const std::string& text) {
  const auto found = find_repetition(sequence_of(text));
  return found ? found->length() : 0;
}

TEST(RepetitionTest, IsFoundWhereAllIsTheSame) {
  EXPECT_EQ(period(times(3, "abcde")), 5U);
  EXPECT_EQ(period(times(40, "abcdeabf")), 8U);
  EXPECT_EQ(period(times(5, "g")), 1U);
}

TEST(RepetitionTest, NeedsThree) {
  EXPECT_EQ(period(times(2, "abcde")), 0U);
  EXPECT_EQ(period("abcdefghijkl"), 0U);
  EXPECT_EQ(period("ab"), 0U);
}

TEST(RepetitionTest, IsNotSeenInWorkWithoutOrder) {
  std::string text;
  std::uint64_t state = 1;
  for (int i = 0; i < 3000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += static_cast<char>('a' + (state >> 33U) % 20);
  }
  EXPECT_EQ(period(text), 0U);
}

TEST(RepetitionTest, MayComeAfterOtherWork) {
  EXPECT_EQ(period("zzyxzwabcabvvuab" + times(6, "abcdefgh")), 8U);
  EXPECT_EQ(period(times(30, "z") + times(6, "abcdefgh")), 8U);  // parameters are filled one after another
}

TEST(RepetitionTest, MayBeFollowedByShorterWorkOfAnotherKind) {
  EXPECT_EQ(period(times(20, "abcdefgh") + times(8, "xyz")), 8U);  // a validation
  EXPECT_EQ(period(times(8, "xyz") + times(20, "abcdefgh") + times(8, "g")), 8U);
}

TEST(RepetitionTest, IsThatOfTheLastOfPhasesThatAreAboutAsLong) {
  EXPECT_EQ(period(times(20, "xyz") + times(6, "abcdefgh")), 8U);
}

TEST(RepetitionTest, MayBeCutOffAtTheEnd) { EXPECT_EQ(period(times(6, "abcdefgh") + "abcd"), 8U); }

TEST(RepetitionTest, MayBeCutOffAtTheBegin) { EXPECT_EQ(period("defgh" + times(6, "abcdefgh")), 8U); }

TEST(RepetitionTest, MayHaveMoreWorkNowAndThen) {
  const std::string iteration = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN";
  EXPECT_EQ(period(times(5, times(9, iteration) + iteration + "X") + times(4, iteration)), 40U);
  EXPECT_EQ(period(times(20, "abcdefgh") + "abXcdefgh" + times(3, "abcdefgh")), 8U);
}

TEST(RepetitionTest, MayHaveAnotherKernelOnce) {
  EXPECT_EQ(period(times(4, "abcdefgh") + "abcXefgh" + times(4, "abcdefgh")), 8U);
}

TEST(RepetitionTest, IsNotThatOfLayersForwardAndBackward) {
  EXPECT_EQ(period(times(4, "e" + times(6, "abc") + "l" + times(6, "xyzw") + "o")), 45U);
}

TEST(RepetitionTest, IsNotThatOfLayersWithLittleAround) {
  EXPECT_EQ(period(times(4, "E" + times(24, "abcdefghijkl") + "H")), 290U);
  EXPECT_EQ(period(times(3, times(24, "abcdefghijkl") + "H")), 289U);
}

TEST(RepetitionTest, IsNotThatOfLayersOfWhichTheLastIsShorter) {
  EXPECT_EQ(period(times(4, times(15, "gr") + "g")), 31U);  // only "gg" shows where an iteration begins
}

TEST(RepetitionTest, IsNotThatOfLayersBetweenPauses) {
  EXPECT_EQ(period(times(5, "." + times(4, "gr"))), 8U);
  EXPECT_EQ(period(times(5, "." + times(2, "gr"))), 4U);
  EXPECT_EQ(period(times(20, "gr")), 2U);
}

TEST(RepetitionTest, IsNotThatOfLayersInOneCallOfAModule) {
  EXPECT_EQ(period("(" + times(12, "gr") + ")"), 0U);
  EXPECT_EQ(period(times(12, "(gr)")), 2U);
}

TEST(RepetitionTest, IsThatOfTheOptimizersStep) {
  const std::string microbatch = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  EXPECT_EQ(period(times(4, times(8, microbatch) + "!_")), 417U);
  EXPECT_EQ(period(times(12, "abc!o")), 4U);
}

TEST(RepetitionTest, BeginsAfterTheLargestGap) {
  const IssueSequence sequence = sequence_of(times(5, "abcd.efgh"));
  const auto found = find_repetition(sequence);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(begin_at_gap(sequence, *found).cuts, ElementsAre(4, 12, 20, 28, 36));
}

TEST(RepetitionTest, BeginsAfterTheOptimizerEvenWhereAGapIsLarger) {
  const IssueSequence sequence = sequence_of(times(5, "abcd.ef!gh"));  // the step ends before h
  const auto found = find_repetition(sequence);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(begin_at_gap(sequence, *found).cuts, ElementsAre(7, 15, 23, 31, 39));
}

TEST(RepetitionTest, IsCutAtTheSameKernelWhereAnIterationHasMoreOrLess) {
  const IssueSequence sequence = sequence_of(".abcdefgh.abXcdefgh.abcdefgh.abcdefh.abcdefgh.abcdefgh.abcdefgh.abc");
  const auto found = find_repetition(sequence);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(begin_at_gap(sequence, *found).cuts, ElementsAre(0, 8, 17, 25, 32, 40, 48, 56));
}

TEST(RepetitionTest, TellsHowMuchOfTheLastOneIsThere) {
  const IssueSequence sequence = sequence_of(times(4, "abcdefgh") + "abcdef");
  const auto found = find_repetition(sequence);
  ASSERT_TRUE(found.has_value());
  EXPECT_DOUBLE_EQ(completeness(sequence, *found, 24), 1);
  EXPECT_DOUBLE_EQ(completeness(sequence, *found, 32), 0.75);
}

}  // namespace
}  // namespace pianola::profiling::repetition_test
