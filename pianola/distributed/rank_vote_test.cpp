#include <pianola/distributed/rank_vote.hpp>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace pianola::distributed::rank_vote_test {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr milliseconds kLong = std::chrono::minutes(1), kShort{20};

Membership of(const std::string& group, std::int64_t member, std::int64_t size) {
  return {.group = group, .member = member, .size = size, .moment = ""};
}

/// Ranks that share a store, each with the votes of its own process.
class RankVoteTest : public ::testing::Test {
 protected:
  explicit RankVoteTest(std::int64_t size = 3) {
    for (std::int64_t rank = 0; rank < size; ++rank) {
      processes.emplace_back(RankVote::Options{});
      groups.push_back({of("all", rank, size)});
    }
  }
  static Ballot in_favour(std::size_t rank, const std::string& call = "suspend()") {
    return {.call = call, .name = "rank " + std::to_string(rank)};
  }

  /// What one is told, "" where the vote is won.
  std::string vote(std::size_t rank, const Ballot& ballot, milliseconds patience = kLong) {
    const auto objection = processes[rank].vote(groups[rank], ballot, store, patience);
    return !objection ? "" : objection->why + (objection->lacks_memory ? " (memory)" : "");
  }
  /// All at once.
  std::vector<std::string> votes(const std::vector<Ballot>& ballots) {
    std::vector<std::future<std::string>> ranks;
    for (std::size_t rank = 0; rank < ballots.size(); ++rank) {
      ranks.push_back(std::async(std::launch::async, [&, rank] { return vote(rank, ballots[rank]); }));
    }
    std::vector<std::string> told;
    for (std::future<std::string>& rank : ranks) told.push_back(rank.get());
    return told;
  }

  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
  std::deque<RankVote> processes;
  std::vector<std::vector<Membership>> groups;
};

TEST_F(RankVoteTest, WhereAllCanTheVoteIsWonAgainAndAgain) {
  for (int i = 0; i < 50; ++i) {
    ASSERT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each("")) << i;
  }
  EXPECT_LE(store->getNumKeys(), 3 * 16) << "old entries go";
}

TEST_F(RankVoteTest, WhereOneCannotTheOthersAreToldWhoAndWhy) {
  Ballot against = in_favour(1);
  against.objection = "a capture is open";
  EXPECT_THAT(votes({in_favour(0), against, in_favour(2)}),
              ElementsAre("rank 1 cannot: a capture is open", "", "rank 1 cannot: a capture is open"))
      << "it knows itself";
  against.objection = "no room";
  against.lacks_memory = true;
  EXPECT_THAT(votes({in_favour(0), against, in_favour(2)}),
              ElementsAre("rank 1 cannot: no room (memory)", "", "rank 1 cannot: no room (memory)"));
  EXPECT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each(""));
}

TEST_F(RankVoteTest, AnObjectionDoesNotWait) {
  Ballot against = in_favour(1);
  against.objection = "a capture is open";
  EXPECT_EQ(vote(1, against), "");
  EXPECT_EQ(vote(0, in_favour(0)), "rank 1 cannot: a capture is open");
  EXPECT_EQ(vote(2, in_favour(2)), "rank 1 cannot: a capture is open") << "whoever comes later is told the same";
}

TEST_F(RankVoteTest, RanksThatCallSomethingElseAreTold) {
  const std::string at_odds = "rank 1 called resume() where rank 0 called suspend()";
  EXPECT_EQ(votes({in_favour(0), in_favour(1, "resume()"), in_favour(2)})[0], at_odds);
  EXPECT_THAT(votes({in_favour(0), in_favour(1, "resume()"), in_favour(2)}), Each(::testing::Ne("")));
}

TEST_F(RankVoteTest, ARankThatDoesNotVoteIsWaitedForAndItsVoteIsLostForAll) {
  auto other = std::async(std::launch::async, [&] { return vote(2, in_favour(2)); });
  const std::string absent = "rank 1 of process group 'all' has not called it within 0.02 s";
  EXPECT_EQ(vote(0, in_favour(0), kShort), absent);
  EXPECT_EQ(other.get(), absent);
  EXPECT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each("")) << "the late one joins the next";
}

TEST_F(RankVoteTest, ARankThatComesTooLateIsNotOfTheVoteThatWasLost) {
  EXPECT_NE(vote(0, in_favour(0), kShort), "");
  EXPECT_NE(vote(1, in_favour(1), kShort), "") << "the others are not there any more";
  EXPECT_NE(vote(2, in_favour(2), kShort), "");
  EXPECT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each(""));
}

TEST_F(RankVoteTest, AVoteReachesTheOtherGroupsOfItsMembers) {
  groups = {{of("01", 0, 2)}, {of("01", 1, 2), of("12", 0, 2)}, {of("12", 1, 2)}};
  EXPECT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each(""));
  Ballot against = in_favour(2);
  against.objection = "no";
  EXPECT_THAT(votes({in_favour(0), in_favour(1), against}), ElementsAre("rank 2 cannot: no", "rank 2 cannot: no", ""));
}

TEST_F(RankVoteTest, AGroupThatEndsTakesItsEntriesBackButThoseOfTheLastVoteThatWasWon) {
  EXPECT_NE(vote(0, in_favour(0), kShort), "");
  EXPECT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each(""));
  EXPECT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each(""));
  Ballot against = in_favour(1);
  against.objection = "no";
  EXPECT_EQ(vote(1, against), "");
  for (RankVote& process : processes) process.forget("all");
  EXPECT_EQ(store->getNumKeys(), 3);
  EXPECT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each("")) << "another one of its name";
}

TEST_F(RankVoteTest, EntriesOfAGroupThatEndedCountForNoOther) {
  EXPECT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each(""));
  for (RankVote& process : processes) process.forget("all");
  EXPECT_NE(vote(0, in_favour(0), kShort), "") << "the others have not voted in this one";
  EXPECT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each(""));
  for (RankVote& process : processes) process.forget("all");
  groups = {{of("all", 0, 2)}, {of("all", 1, 2)}};
  EXPECT_NE(vote(0, in_favour(0), kShort), "") << "nor in one of fewer ranks";
  EXPECT_THAT(votes({in_favour(0), in_favour(1)}), Each(""));
}

TEST_F(RankVoteTest, AGroupMayEndOnOneRankWhileAnotherIsStillReading) {
  RankVote slow({.first_interval = milliseconds(300), .longest_interval = milliseconds(300)});
  auto reading = std::async(std::launch::async,
                            [&] { return slow.vote(groups[0], in_favour(0), store, std::chrono::seconds(2)); });
  while (store->getNumKeys() == 0) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(20));  // it looks for the next rank, and waits
  std::vector<std::future<std::string>> others;
  for (const std::size_t rank : {1, 2}) {
    others.push_back(std::async(std::launch::async, [&, rank] {
      std::string told = vote(rank, in_favour(rank));
      processes[rank].forget("all");
      return told;
    }));
  }
  for (std::future<std::string>& other : others) EXPECT_EQ(other.get(), "");
  const std::optional<Objection> told = reading.get();
  EXPECT_FALSE(told.has_value()) << told->why;
}

// Where the group ends on another thread just when a rank has voted.
class EndingStore final : public c10d::HashStore {
 public:
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override {
    const auto entry = c10d::HashStore::compareSet(key, expected, desired);
    if (process != nullptr) process->forget("all");
    return entry;
  }

  RankVote* process = nullptr;
};

TEST_F(RankVoteTest, AGroupThatEndsWhileItVotesLeavesNothingOfIt) {
  const auto ending = c10::make_intrusive<EndingStore>();
  ending->process = &processes[1];
  store = ending;
  Ballot against = in_favour(1);
  against.objection = "no";
  EXPECT_EQ(vote(1, against), "");
  processes[1].forget("all");
  EXPECT_EQ(store->getNumKeys(), 0);
}

// One that takes nothing back.
class KeepingStore final : public c10d::HashStore {
 public:
  bool deleteKey(const std::string& /*key*/) override { throw std::runtime_error("this store deletes nothing"); }
};

TEST_F(RankVoteTest, AStoreThatDeletesNothingLosesNoVote) {
  store = c10::make_intrusive<KeepingStore>();
  for (int i = 0; i < 40; ++i) {
    ASSERT_THAT(votes({in_favour(0), in_favour(1), in_favour(2)}), Each("")) << i;
  }
  for (RankVote& process : processes) process.forget("all");
}

}  // namespace
}  // namespace pianola::distributed::rank_vote_test
