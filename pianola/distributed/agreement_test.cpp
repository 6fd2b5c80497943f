#include <pianola/distributed/agreement.hpp>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pianola::distributed::agreement_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

Statement statement(std::int64_t rank, const std::vector<std::string>& groups, std::int64_t size = 2,
                    const std::string& moment = "0") {
  Statement made{.process = "p" + std::to_string(rank), .name = "rank " + std::to_string(rank)};
  for (const std::string& group : groups) {
    const auto known =
        std::find_if(made.groups.begin(), made.groups.end(), [&](const Membership& one) { return one.group == group; });
    const auto index = static_cast<std::uint32_t>(known - made.groups.begin());
    if (known == made.groups.end())
      made.groups.push_back({.group = group, .member = rank, .size = size, .moment = moment});
    made.calls.push_back({.group = index,
                          .agreed = "float, sum",
                          .gives = {8},
                          .takes = {8},
                          .place = static_cast<std::uint32_t>(made.calls.size())});
  }
  return made;
}

std::string place_of(const Call& call) { return "train.py:" + std::to_string(call.place); }

/// One thread a rank; what each is told, "" where there is no objection.
std::vector<std::string> verdicts(std::vector<Statement> statements, Agreement::Options options = {}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> told(statements.size());
  std::vector<std::thread> ranks;
  for (std::size_t i = 0; i < statements.size(); ++i) {
    ranks.emplace_back([&, i] {
      Agreement agreement(options);
      const auto objection = agreement.find_objection(statements[i], store, place_of);
      if (objection) told[i] = objection->rule + ": " + objection->what;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return told;
}

TEST(AgreementTest, RanksThatCommunicateAlikeAgree) {
  EXPECT_THAT(verdicts({statement(0, {"a", "b"}), statement(1, {"a", "b"})}), ::testing::Each(""));
}

TEST(AgreementTest, AllRanksAreToldTheSameWithBothLines) {
  const auto told = verdicts({statement(0, {"a", "a", "b"}), statement(1, {"a", "b", "a"})});
  EXPECT_EQ(told[0],
            "PG1107: the ranks wait for each other for ever: rank 0: all_reduce (float, sum) of 8 elements by process "
            "group 'a' at "
            "train.py:1; rank 1: all_reduce (float, sum) of 8 elements by process group 'b' at train.py:1");
  EXPECT_EQ(told[1], told[0]);
}

TEST(AgreementTest, EightRanksAgreeAndDisagree) {
  std::vector<Statement> ranks;
  for (std::int64_t rank = 0; rank < 8; ++rank) ranks.push_back(statement(rank, {"a", "b", "a"}, 8));
  EXPECT_THAT(verdicts(ranks), ::testing::Each(""));
  ranks[5] = statement(5, {"b", "a", "a"}, 8);
  EXPECT_THAT(verdicts(ranks), ::testing::Each(AllOf(HasSubstr("rank 5"), HasSubstr("train.py:0"))));
}

TEST(AgreementTest, ACycleIsFoundByARankThatSharesNoGroupWithAll) {
  const auto of = [](std::int64_t rank, const std::string& first, std::int64_t first_member, const std::string& second,
                     std::int64_t second_member) {
    Statement made = statement(rank, {first, second});
    made.groups[0].member = first_member;
    made.groups[1].member = second_member;
    return made;
  };
  const auto told =
      verdicts({of(0, "01", 0, "30", 1), of(1, "12", 0, "01", 1), of(2, "23", 0, "12", 1), of(3, "30", 0, "23", 1)});
  EXPECT_THAT(
      told, ::testing::Each(AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("rank 2"), HasSubstr("rank 3"))));
}

struct Nobody final : c10d::Backend {
  Nobody(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "nobody"; }  // NOLINT(readability-const-return-type)
};

struct Counting final : c10d::HashStore {
  bool check(const std::vector<std::string>& keys) override {
    ++checks;
    return HashStore::check(keys);
  }
  int checks = 0;
};

TEST(AgreementTest, ARankThatStatesNothingIsWaitedForOnceAndNotLong) {
  const auto store = c10::make_intrusive<Counting>();
  Agreement agreement({.patience = milliseconds(50), .again = milliseconds(0)});
  EXPECT_FALSE(agreement.find_objection(statement(0, {"a"}), store, place_of));
  EXPECT_GT(store->checks, 1);
  store->checks = 0;
  EXPECT_FALSE(agreement.find_objection(statement(0, {"a"}), store, place_of));
  EXPECT_EQ(store->checks, 1);
}

TEST(AgreementTest, GraphsOfOtherMomentsAreNotCompared) {
  EXPECT_THAT(verdicts({statement(0, {"a", "b"}), statement(1, {"b", "a"}, 2, "9")}, {.patience = milliseconds(20)}),
              ::testing::Each(""));
}

TEST(AgreementTest, GraphsThatAreCapturedBehindEachOtherAreComparedOneByOne) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto run = [&](std::int64_t rank, std::vector<std::string>& told) {
    Agreement agreement({});
    for (const std::vector<std::string>& graph :
         {std::vector<std::string>{"a", "a"},
          {"a", "b"},
          rank == 0 ? std::vector<std::string>{"a", "b"} : std::vector<std::string>{"b", "a"}}) {
      const auto objection = agreement.find_objection(statement(rank, graph), store, place_of);
      told.push_back(objection ? objection->what : "");
    }
  };
  std::vector<std::string> one, other;
  std::thread rank([&] { run(1, other); });
  run(0, one);
  rank.join();
  EXPECT_EQ(one, other);
  EXPECT_THAT(one, ::testing::ElementsAre("", "", HasSubstr("wait for each other")));
}

TEST(AgreementTest, AGroupThatEndsTakesItsStatementsBack) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Agreement ends({.patience = milliseconds(0)});
  EXPECT_FALSE(ends.find_objection(statement(0, {"a", "a"}), store, place_of));
  EXPECT_EQ(store->getNumKeys(), 1);
  ends.forget("a");
  EXPECT_EQ(store->getNumKeys(), 0);
  Agreement begins({.patience = milliseconds(0)});
  EXPECT_FALSE(begins.find_objection(statement(1, {"a"}), store, place_of)) << "another group of that name";
}

TEST(AgreementTest, ARankThatEndsItsGroupsAtOnceLeavesItsLines) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::promise<void> has_ended;
  std::thread other([&] {
    Agreement agreement({.patience = milliseconds(300)});  // for lines that the rank below states later
    EXPECT_TRUE(agreement.find_objection(statement(0, {"a", "b"}), store, place_of));
    agreement.forget("a");
    agreement.forget("b");
    has_ended.set_value();
  });
  Agreement agreement({});
  const auto objection = agreement.find_objection(statement(1, {"b", "a"}), store, [&](const Call& call) {
    has_ended.get_future().wait();
    return place_of(call);
  });
  other.join();
  ASSERT_TRUE(objection);
  EXPECT_THAT(objection->what, ::testing::ContainsRegex("rank 0: .* at train.py:0; rank 1: .* at train.py:0"));
}

TEST(AgreementTest, OldStatementsAreTakenBack) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Agreement agreement({.patience = milliseconds(0)});
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(agreement.find_objection(statement(0, {"a"}), store, place_of));
  EXPECT_LE(store->getNumKeys(), 32);
}

TEST(AgreementTest, RanksMeetInTheStoreOfTheirLargestGroup) {
  const auto group = [](const std::string& name, int size, const c10::intrusive_ptr<c10d::Store>& store) {
    auto made = c10::make_intrusive<c10d::ProcessGroup>(store, 0, size);
    made->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<Nobody>(0, size));
    made->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    made->setGroupName(name);
    return made;
  };
  const auto one = c10::make_intrusive<c10d::HashStore>(), other = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(common_store({group("pair", 2, one), group("all", 4, other)}).get(), other.get());
  EXPECT_EQ(common_store({group("b", 2, one), group("a", 2, other)}).get(), other.get()) << "the first by its name";
  EXPECT_EQ(common_store({}).get(), nullptr);
}

}  // namespace
}  // namespace pianola::distributed::agreement_test
