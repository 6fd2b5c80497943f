#include <pianola/memory/same_place.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace pianola::memory::same_place_test {
namespace {

const void* op(char name) { return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(name)); }

std::vector<const void*> ops(const std::string& names) {
  std::vector<const void*> all;
  for (const char name : names) all.push_back(op(name));
  return all;
}

// Where each operation of `now` lies in `before`; '?': not known.
std::string places(const std::string& before, const std::string& now) {
  SamePlace place(ops(before));
  std::string result;
  for (const char name : now) {
    place.advance(op(name));
    result += place.now() < 0 ? '?' : static_cast<char>('a' + place.now());
  }
  return result;
}

TEST(SamePlaceTest, FollowsARunThatIsTheSame) { EXPECT_EQ(places("xyzxyzxx", "xyzxyzxx"), "abcdefgh"); }

TEST(SamePlaceTest, NothingHasBegunAtFirst) { EXPECT_EQ(SamePlace(ops("xy")).now(), -1); }

TEST(SamePlaceTest, ANewOperationIsUnknownAndTheNextIsFound) {
  EXPECT_EQ(places("abcdefgh", "abQcdefgh"), "ab?cdefgh");
}

TEST(SamePlaceTest, AMissingOperationIsLeftOut) { EXPECT_EQ(places("abcdefgh", "abdefgh"), "abdefgh"); }

TEST(SamePlaceTest, WhatLooksLikeSeveralPlacesIsUnknownUntilOneLeadsOn) {
  EXPECT_EQ(places("xyxyxyabxyxyxy", "xyxyQabxyxyxy"), "abcd?ghijklmn");
  EXPECT_EQ(places("xaxbxcxdxexf", "xaxbQxcxdxexf"), "abcd??fghijkl");
}

// A library does a few other operations before the layers, which are all alike.
TEST(SamePlaceTest, LayersThatRepeatAreNotTakenForEachOther) {
  const std::string layer = "lmaadnlgmd", layers = layer + layer + layer + layer + layer + layer;
  for (const auto& [before, now] :
       {std::pair("erwseqt", "eraq"), std::pair("eraq", "erwseqt"), std::pair("e", "eqqqq")}) {
    const std::string known = before + layers + "L", run = now + layers + "L";
    SamePlace place(ops(known));
    for (std::size_t i = 0; i < run.size(); ++i) {
      place.advance(op(run[i]));
      const std::size_t into_layers = i - std::string(now).size();
      if (i < std::string(now).size() + 4) continue;
      EXPECT_EQ(place.now(), static_cast<std::int64_t>(std::string(before).size() + into_layers)) << i << " of " << run;
    }
  }
}

TEST(SamePlaceTest, WhatTheRunDoesNotHaveIsUnknown) { EXPECT_EQ(places("ab", "abxyab"), "ab??ab"); }

// Long runs of few kinds, with parts that are missing, new or others.
TEST(SamePlaceTest, FindsAgainWhatWasLost) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<const void*> before, now;
    std::vector<std::int64_t> truth;
    for (std::int64_t i = 0; i < 2000; ++i) {
      const void* const operation = op(static_cast<char>('a' + random() % 20));
      before.push_back(operation);
      if (random() % 200 == 0) {
        for (std::uint32_t k = random() % 10; k > 0; --k) {
          now.push_back(op(static_cast<char>('a' + random() % 20)));
          truth.push_back(SamePlace::kUnknown);
        }
      } else if (random() % 200 != 0) {
        now.push_back(operation);
        truth.push_back(i);
      }
    }
    SamePlace place(before);
    std::size_t right = 0, wrong = 0;
    for (std::size_t i = 0; i < now.size(); ++i) {
      place.advance(now[i]);
      right += place.now() == truth[i] ? 1U : 0U;
      wrong += place.now() != truth[i] && place.now() != SamePlace::kUnknown ? 1U : 0U;
    }
    EXPECT_GE(right, now.size() * 90 / 100) << seed;
    EXPECT_LE(wrong, now.size() * 3 / 100) << seed;
  }
}

}  // namespace
}  // namespace pianola::memory::same_place_test
