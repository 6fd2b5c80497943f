#include <pianola/distributed/order_proof.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::distributed::order_proof_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = Call::Kind;
using Members = std::vector<std::int64_t>;

/// What the graphs of some ranks hold, written as a program would call it.
class Ranks {
 public:
  explicit Ranks(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      statements_.push_back({.process = "p" + std::to_string(i), .name = "rank " + std::to_string(i)});
    }
  }

  Ranks& group(const std::string& name, const Members& members) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      at(members[i])
          .groups.push_back({.group = name,
                             .member = static_cast<std::int64_t>(i),
                             .size = static_cast<std::int64_t>(members.size()),
                             .moment = "0.0"});
    }
    return *this;
  }
  Ranks& all_reduce(std::int64_t rank, const std::string& group, std::int64_t elements = 16,
                    const std::string& agreed = "float, sum") {
    return add(rank, group, {.kind = Kind::all_reduce, .agreed = agreed, .gives = {elements}, .takes = {elements}});
  }
  Ranks& call(std::int64_t rank, const std::string& group, Kind kind, Members gives, Members takes) {
    return add(rank, group, {.kind = kind, .agreed = "float", .gives = std::move(gives), .takes = std::move(takes)});
  }
  Ranks& send(std::int64_t rank, const std::string& group, std::int64_t peer, bool with_next = false,
              std::int64_t elements = 8, std::int64_t bytes = 32) {
    return add(rank, group,
               {.kind = Kind::send,
                .agreed = "float",
                .gives = {elements},
                .bytes = bytes,
                .peer = peer,
                .with_next = with_next});
  }
  Ranks& receive(std::int64_t rank, const std::string& group, std::int64_t peer, bool with_next = false,
                 std::int64_t elements = 8) {
    return add(rank, group,
               {.kind = Kind::receive, .agreed = "float", .takes = {elements}, .peer = peer, .with_next = with_next});
  }
  Ranks& moment(std::int64_t rank, const std::string& text) {
    for (Membership& one : at(rank).groups) one.moment = text;
    return *this;
  }
  Ranks& forget(std::int64_t rank) {
    statements_.erase(statements_.begin() + rank);
    return *this;
  }

  /// "" where they agree.
  [[nodiscard]] std::string verdict() const {
    const auto found = find_disagreement(statements_);
    if (!found) return "";
    std::string text = found->what;
    for (const auto& part : found->parts) {
      const Statement& of = statements_[part.statement];
      text += "; " + words_of(of, of.calls[part.call]);
    }
    return text;
  }

 private:
  Statement& at(std::int64_t rank) { return statements_[static_cast<std::size_t>(rank)]; }
  Ranks& add(std::int64_t rank, const std::string& group, Call call) {
    Statement& of = at(rank);
    const auto found =
        std::find_if(of.groups.begin(), of.groups.end(), [&](const Membership& one) { return one.group == group; });
    call.group = static_cast<std::uint32_t>(found - of.groups.begin());
    call.place = static_cast<std::uint32_t>(of.calls.size());
    of.calls.push_back(std::move(call));
    return *this;
  }

  std::vector<Statement> statements_;
};

constexpr std::int64_t kLarge = std::int64_t{64} << 20U;

Ranks two_with_two_groups() { return Ranks(2).group("a", {0, 1}).group("b", {0, 1}); }

// Four stages, and a group for each pair of neighbours; one forward, one backward in the steady state.
Ranks pipeline(std::size_t stages, std::int64_t microbatches) {
  Ranks ranks(stages);
  const auto last = static_cast<std::int64_t>(stages) - 1;
  Members all;
  for (std::int64_t i = 0; i <= last; ++i) all.push_back(i);
  ranks.group("pp", all);
  for (std::int64_t rank = 0; rank <= last; ++rank) {
    const auto forward = [&] {
      if (rank > 0) ranks.receive(rank, "pp", rank - 1);
      if (rank < last) ranks.send(rank, "pp", rank + 1);
    };
    const auto backward = [&] {
      if (rank < last) ranks.receive(rank, "pp", rank + 1);
      if (rank > 0) ranks.send(rank, "pp", rank - 1);
    };
    const std::int64_t ahead = std::min(microbatches, last - rank);
    for (std::int64_t i = 0; i < ahead; ++i) forward();
    for (std::int64_t i = ahead; i < microbatches; ++i) {
      forward();
      backward();
    }
    for (std::int64_t i = 0; i < ahead; ++i) backward();
  }
  return ranks;
}

// Ranks in a grid; each row and each column is a group.
Ranks grid(std::int64_t rows, std::int64_t columns,
           const std::function<void(Ranks&, std::int64_t row, std::int64_t column)>& step) {
  Ranks ranks(static_cast<std::size_t>(rows * columns));
  for (std::int64_t row = 0; row < rows; ++row) {
    Members members;
    for (std::int64_t column = 0; column < columns; ++column) members.push_back(row * columns + column);
    ranks.group("row" + std::to_string(row), members);
  }
  for (std::int64_t column = 0; column < columns; ++column) {
    Members members;
    for (std::int64_t row = 0; row < rows; ++row) members.push_back(row * columns + column);
    ranks.group("column" + std::to_string(column), members);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) step(ranks, row, column);
  }
  return ranks;
}

Ranks ring(std::size_t count, bool together, std::int64_t bytes) {
  Ranks ranks(count);
  const auto size = static_cast<std::int64_t>(count);
  Members all;
  for (std::int64_t i = 0; i < size; ++i) all.push_back(i);
  ranks.group("ring", all);
  for (std::int64_t i = 0; i < size; ++i) {
    ranks.send(i, "ring", (i + 1) % size, together, 8, bytes).receive(i, "ring", (i + size - 1) % size);
  }
  return ranks;
}

struct Program {
  std::string name;
  Ranks ranks;
};

std::vector<Program> right_programs() {
  const auto reduces = [](std::int64_t calls, std::size_t count, std::int64_t known) {
    Ranks ranks(count);
    Members all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(static_cast<std::int64_t>(i));
    ranks.group("all", all);
    for (std::int64_t rank = 0; rank < known; ++rank) {
      for (std::int64_t i = 0; i < calls; ++i) ranks.all_reduce(rank, "all", 100 + i);
    }
    return ranks;
  };
  std::vector<Program> programs;
  const auto add = [&](std::string name, Ranks ranks) { programs.push_back({std::move(name), std::move(ranks)}); };
  add("nothing", Ranks(2).group("all", {0, 1}));
  add("one rank alone", reduces(3, 1, 1));
  add("data parallel", reduces(12, 2, 2));
  add("data parallel of eight", reduces(40, 8, 8));
  add("a rank that says nothing", reduces(3, 3, 3).forget(1));
  add("two groups in one order",
      two_with_two_groups().all_reduce(0, "a").all_reduce(0, "b").all_reduce(1, "a").all_reduce(1, "b"));
  add("two orders of two moments",
      two_with_two_groups().all_reduce(0, "a").all_reduce(0, "b").all_reduce(1, "b").all_reduce(1, "a").moment(1,
                                                                                                               "7.0"));
  add("other lengths at other moments",
      Ranks(2).group("all", {0, 1}).all_reduce(0, "all", 3).all_reduce(1, "all", 4).moment(1, "1.0"));
  add("broadcast", Ranks(2)
                       .group("all", {0, 1})
                       .call(0, "all", Kind::broadcast, {4}, {4})
                       .call(1, "all", Kind::broadcast, {4}, {4}));
  add("gather of other lengths", Ranks(3)
                                     .group("all", {0, 1, 2})
                                     .call(0, "all", Kind::gather, {1}, {1, 2, 3})
                                     .call(1, "all", Kind::gather, {2}, {})
                                     .call(2, "all", Kind::gather, {3}, {}));
  add("scatter",
      Ranks(2).group("all", {0, 1}).call(0, "all", Kind::scatter, {5, 5}, {5}).call(1, "all", Kind::scatter, {}, {5}));
  add("gathers of other lengths", Ranks(2)
                                      .group("all", {0, 1})
                                      .call(0, "all", Kind::all_gather, {1}, {1, 2})
                                      .call(1, "all", Kind::all_gather, {2}, {1, 2}));
  add("even all-to-all", Ranks(2)
                             .group("all", {0, 1})
                             .call(0, "all", Kind::all_to_all, {4}, {4})
                             .call(1, "all", Kind::all_to_all, {4}, {4}));
  add("uneven all-to-all", Ranks(2)
                               .group("all", {0, 1})
                               .call(0, "all", Kind::all_to_all, {1, 2}, {1, 3})
                               .call(1, "all", Kind::all_to_all, {3, 4}, {2, 4}));
  add("sharded: gather, gather, scatter", [] {
    Ranks ranks = Ranks(2).group("all", {0, 1});
    for (const std::int64_t rank : {0, 1}) {
      for (int layer = 0; layer < 4; ++layer) ranks.call(rank, "all", Kind::all_gather, {8}, {8});
      for (int layer = 0; layer < 4; ++layer)
        ranks.call(rank, "all", Kind::all_gather, {8}, {8}).call(rank, "all", Kind::reduce_scatter, {8}, {8});
    }
    return ranks;
  }());
  add("a message", Ranks(2).group("pp", {0, 1}).send(0, "pp", 1).receive(1, "pp", 0));
  add("a large message", Ranks(2).group("pp", {0, 1}).send(0, "pp", 1, false, 8, kLarge).receive(1, "pp", 0));
  add("there and back",
      Ranks(2).group("pp", {0, 1}).send(0, "pp", 1).receive(0, "pp", 1).receive(1, "pp", 0).send(1, "pp", 0));
  add("small messages that cross",
      Ranks(2).group("pp", {0, 1}).send(0, "pp", 1).receive(0, "pp", 1).send(1, "pp", 0).receive(1, "pp", 0));
  add("large messages that cross as one", Ranks(2)
                                              .group("pp", {0, 1})
                                              .send(0, "pp", 1, true, 8, kLarge)
                                              .receive(0, "pp", 1)
                                              .send(1, "pp", 0, true, 8, kLarge)
                                              .receive(1, "pp", 0));
  add("a ring", ring(8, true, kLarge));
  add("a ring of small ones", ring(8, false, 32));
  add("pipeline of two", pipeline(2, 4));
  add("pipeline of four", pipeline(4, 8));
  add("pipeline of eight", pipeline(8, 8));
  add("pipeline whose messages are received by graphs of their own",
      Ranks(2).group("pp", {0, 1}).send(0, "pp", 1).receive(0, "pp", 1).receive(1, "pp", 0));
  add("interleaved pipeline", [] {  // two chunks of the model on each of two ranks
    Ranks ranks = Ranks(2).group("pp", {0, 1});
    for (int i = 0; i < 3; ++i) {
      ranks.send(0, "pp", 1).receive(0, "pp", 1, true).send(0, "pp", 1).receive(0, "pp", 1);
      ranks.receive(1, "pp", 0).send(1, "pp", 0, true).receive(1, "pp", 0).send(1, "pp", 0);
    }
    return ranks;
  }());
  add("tensor x data", grid(2, 2, [](Ranks& ranks, std::int64_t row, std::int64_t column) {
        const std::int64_t rank = row * 2 + column;
        for (int layer = 0; layer < 3; ++layer) ranks.all_reduce(rank, "row" + std::to_string(row));
        ranks.all_reduce(rank, "column" + std::to_string(column), 1000);
      }));
  add("pipeline x data", grid(2, 4, [](Ranks& ranks, std::int64_t row, std::int64_t column) {
        const std::int64_t rank = row * 4 + column;
        const std::string stages = "row" + std::to_string(row);
        if (column > 0) ranks.receive(rank, stages, column - 1);
        if (column < 3) ranks.send(rank, stages, column + 1).receive(rank, stages, column + 1);
        if (column > 0) ranks.send(rank, stages, column - 1);
        ranks.all_reduce(rank, "column" + std::to_string(column));
      }));
  add("groups that not every rank is in", Ranks(4)
                                              .group("low", {0, 1})
                                              .group("high", {2, 3})
                                              .group("all", {0, 1, 2, 3})
                                              .all_reduce(0, "low")
                                              .all_reduce(1, "low")
                                              .all_reduce(2, "high")
                                              .all_reduce(3, "high")
                                              .all_reduce(0, "all")
                                              .all_reduce(1, "all")
                                              .all_reduce(2, "all")
                                              .all_reduce(3, "all"));
  add("three groups around a triangle", Ranks(3)
                                            .group("ab", {0, 1})
                                            .group("bc", {1, 2})
                                            .group("ca", {2, 0})
                                            .all_reduce(0, "ab")
                                            .all_reduce(0, "ca")
                                            .all_reduce(1, "ab")
                                            .all_reduce(1, "bc")
                                            .all_reduce(2, "bc")
                                            .all_reduce(2, "ca"));
  return programs;
}

TEST(OrderProof, LetsRightProgramsBe) {
  const std::vector<Program> programs = right_programs();
  EXPECT_GE(programs.size(), 30U);
  for (const Program& program : programs) EXPECT_EQ(program.ranks.verdict(), "") << program.name;
}

TEST(OrderProof, NamesTwoGroupsInTwoOrders) {
  EXPECT_EQ(
      two_with_two_groups()
          .all_reduce(0, "a", 3)
          .all_reduce(0, "b", 4)
          .all_reduce(1, "b", 4)
          .all_reduce(1, "a", 3)
          .verdict(),
      "the ranks wait for each other for ever; rank 0: all_reduce (float, sum) of 3 elements by process group 'a'; "
      "rank 1: all_reduce (float, sum) of 4 elements by process group 'b'");
}

TEST(OrderProof, NamesACycleThatNoTwoRanksMake) {
  EXPECT_THAT(Ranks(3)
                  .group("ab", {0, 1})
                  .group("bc", {1, 2})
                  .group("ca", {2, 0})
                  .all_reduce(0, "ab")
                  .all_reduce(0, "ca")
                  .all_reduce(1, "bc")
                  .all_reduce(1, "ab")
                  .all_reduce(2, "ca")
                  .all_reduce(2, "bc")
                  .verdict(),
              AllOf(HasSubstr("wait for each other"),
                    HasSubstr("rank 0: all_reduce (float, sum) of 16 elements by process group 'ab'"),
                    HasSubstr("rank 1"), HasSubstr("rank 2")));
}

TEST(OrderProof, NamesAnotherLengthKindOrReduction) {
  const auto pair = [] { return Ranks(2).group("all", {0, 1}); };
  EXPECT_THAT(
      pair().all_reduce(0, "all").all_reduce(0, "all", 5).all_reduce(1, "all").all_reduce(1, "all", 6).verdict(),
      HasSubstr("by the second collective of process group 'all' rank 0 gives 5 elements to rank 1, which takes 6; "
                "rank 0: all_reduce"));
  EXPECT_EQ(
      pair().all_reduce(0, "all").call(1, "all", Kind::broadcast, {16}, {16}).verdict(),
      "the first collectives of process group 'all' are not one; rank 0: all_reduce (float, sum) of 16 elements by "
      "process group 'all'; rank 1: broadcast (float) of 16 elements by process group 'all'");
  EXPECT_THAT(pair().all_reduce(0, "all", 4, "float, sum").all_reduce(1, "all", 4, "float, max").verdict(),
              AllOf(HasSubstr("(float, sum)"), HasSubstr("(float, max)")));
  EXPECT_THAT(pair()
                  .call(0, "all", Kind::all_to_all, {1, 2}, {1, 3})
                  .call(1, "all", Kind::all_to_all, {9, 4}, {2, 4})
                  .verdict(),
              HasSubstr("rank 1 gives 9 elements to rank 0, which takes 3"));
}

TEST(OrderProof, NamesOneThatARankLacks) {
  EXPECT_THAT(
      Ranks(2).group("all", {0, 1}).all_reduce(0, "all").all_reduce(0, "all", 7).all_reduce(1, "all").verdict(),
      AllOf(HasSubstr("rank 1 has no second collective by process group 'all'; rank 0: all_reduce (float, sum) of 7"),
            HasSubstr("rank 1: all_reduce (float, sum) of 16")));
  EXPECT_THAT(Ranks(2).group("all", {0, 1}).all_reduce(0, "all").verdict(),
              HasSubstr("rank 1 has no first collective"));
}

TEST(OrderProof, NamesMessagesThatDoNotMeet) {
  const auto pair = [] { return Ranks(2).group("pp", {0, 1}); };
  EXPECT_EQ(
      pair().receive(0, "pp", 1).send(0, "pp", 1).receive(1, "pp", 0).send(1, "pp", 0).verdict(),
      "the ranks wait for each other for ever; rank 0: recv (float) of 8 elements from member 1 by process group 'pp'; "
      "rank 1: recv (float) of 8 elements from member 0 by process group 'pp'");
  EXPECT_THAT(ring(4, false, kLarge).verdict(), AllOf(HasSubstr("wait for each other"), HasSubstr("rank 3: send")));
  EXPECT_THAT(pair().send(0, "pp", 1, false, 8).receive(1, "pp", 0, false, 9).verdict(),
              HasSubstr("a message is not the one that is received; rank 0: send (float) of 8 elements to member 1"));
}

TEST(OrderProof, NamesAMessageBehindACollective) {
  EXPECT_THAT(Ranks(2)
                  .group("pp", {0, 1})
                  .group("all", {0, 1})
                  .all_reduce(0, "all")
                  .send(0, "pp", 1)
                  .receive(1, "pp", 0)
                  .all_reduce(1, "all")
                  .verdict(),
              AllOf(HasSubstr("rank 0: all_reduce"), HasSubstr("rank 1: recv")));
}

// Each program that has something to exchange, with two neighbours of one rank exchanged.
TEST(OrderProof, NamesEachPairThatIsExchangedOnOneRank) {
  const auto step = [](Ranks& ranks, std::int64_t rank, std::int64_t exchanged) {
    for (std::int64_t i = 0; i < 6; ++i) {
      const std::int64_t call = rank == 1 && i == exchanged ? i + 1 : rank == 1 && i == exchanged + 1 ? i - 1 : i;
      ranks.all_reduce(rank, call % 2 == 0 ? "a" : "b", 10 + call);
    }
  };
  for (std::int64_t exchanged = 0; exchanged < 5; ++exchanged) {
    Ranks ranks = two_with_two_groups();
    step(ranks, 0, -2);
    step(ranks, 1, exchanged);
    EXPECT_THAT(ranks.verdict(), AllOf(HasSubstr("rank 0: all_reduce"), HasSubstr("rank 1: all_reduce"))) << exchanged;
  }
}

TEST(Statements, AreReadAsTheyWereWritten) {
  const Statement one{.process = "host/7",
                      .name = "rank 1",
                      .groups = {{.group = "tp", .member = 1, .size = 4, .moment = "12.0"}},
                      .calls = {{.kind = Kind::send,
                                 .agreed = "float",
                                 .gives = {3, 4},
                                 .takes = {1},
                                 .bytes = 12,
                                 .peer = 2,
                                 .with_next = true,
                                 .place = 5}}};
  const auto read = Statement::from_text(one.to_text());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->to_text(), one.to_text());
  EXPECT_EQ(read->groups, one.groups);
  EXPECT_EQ(read->calls[0].gives, one.calls[0].gives);
  for (const char* const other :
       {"", "{}", "[1]", R"({"version":"0","process":"p","name":"n","groups":[],"calls":[]})"}) {
    EXPECT_FALSE(Statement::from_text(other)) << other;
  }
}

}  // namespace
}  // namespace pianola::distributed::order_proof_test
