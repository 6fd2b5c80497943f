#include <pianola/core/nearest_name.hpp>

#include <pianola/core/plural.hpp>

#include <gtest/gtest.h>

#include <array>

namespace pianola::nearest_name_test {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"local", "none", "transformer_engine", "full_iteration"};

TEST(NearestNameTest, ADistanceCountsInsertionsRemovalsAndReplacements) {
  EXPECT_EQ(edit_distance("local", "local"), 0U);
  EXPECT_EQ(edit_distance("locl", "local"), 1U);
  EXPECT_EQ(edit_distance("llocal", "local"), 1U);
  EXPECT_EQ(edit_distance("lokal", "local"), 1U);
  EXPECT_EQ(edit_distance("", "local"), 5U);
  EXPECT_EQ(edit_distance("local", ""), 5U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(NearestNameTest, TheNearestNameIsFound) {
  EXPECT_EQ(nearest_name("transformer-engine", kNames), "transformer_engine");
  EXPECT_EQ(nearest_name("nnoe", kNames), "none");
}

TEST(NearestNameTest, AWordThatIsNearNothingHasNoNearestName) {
  EXPECT_EQ(nearest_name("pipeline", kNames), "");
  EXPECT_EQ(nearest_name("x", kNames), "");
  EXPECT_EQ(did_you_mean("pipeline", kNames), "");
}

TEST(NearestNameTest, TheNearestNameIsAskedFor) { EXPECT_EQ(did_you_mean("locla", kNames), "; did you mean 'local'?"); }

TEST(NearestNameTest, OneSentenceStandsInALineSeveralInLinesOfTheirOwn) {
  EXPECT_EQ("wrong" + listed({"a"}), "wrong: a");
  EXPECT_EQ("wrong" + listed({"a", "b"}), "wrong:\n  - a\n  - b");
}

}  // namespace
}  // namespace pianola::nearest_name_test
