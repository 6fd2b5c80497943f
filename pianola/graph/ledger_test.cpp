#include <pianola/graph/ledger.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace pianola::graph::ledger_test {
namespace {

using Id = PoolLedger::GraphId;

// Replays a graph where the ledger lets it, and says who stood in the way (0: nobody).
Id replay(PoolLedger& ledger, Id graph) {
  const Id culprit = ledger.overwritten_by(graph);
  if (culprit == 0) ledger.sign(graph);
  return culprit;
}

TEST(PoolLedger, NumbersGraphsInTheOrderOfTheirCapture) {
  PoolLedger ledger;
  EXPECT_EQ(ledger.add({{0, 10}}, {}), 1U);
  EXPECT_EQ(ledger.add({}, {}), 2U);
  ledger.remove(2);
  EXPECT_EQ(ledger.add({}, {}), 3U) << "a number is not given twice";
}

TEST(PoolLedger, LetsGraphsThatReadNothingOfEachOtherReplayInAnyOrder) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {}), b = ledger.add({{50, 150}}, {}), c = ledger.add({{0, 200}}, {});
  for (const Id graph : {c, a, b, b, a, c, a}) EXPECT_EQ(replay(ledger, graph), 0U);
}

TEST(PoolLedger, RefusesAReaderAfterItsInputWasOverwritten) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {});
  const Id b = ledger.add({{100, 200}}, {{0, 100}});
  const Id c = ledger.add({{0, 100}}, {});  // got the bytes of a's result
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, b), 0U);
  EXPECT_EQ(replay(ledger, c), 0U);
  EXPECT_EQ(replay(ledger, b), c) << "after c";
  EXPECT_EQ(replay(ledger, b), c) << "a refusal changes nothing";
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, b), 0U) << "a has produced its result again";
  EXPECT_EQ(replay(ledger, b), 0U) << "and it is still there";
}

TEST(PoolLedger, TakesCaptureItselfAsNoReplay) {
  PoolLedger ledger;
  ledger.add({{0, 100}}, {});
  const Id b = ledger.add({}, {{0, 100}});
  EXPECT_EQ(ledger.overwritten_by(b), 0U) << "nobody has written since";
  ledger.add({{0, 100}}, {});
  EXPECT_EQ(ledger.overwritten_by(b), 0U) << "a capture runs nothing";
}

TEST(PoolLedger, RefusesWhenOnlyAPartWasOverwritten) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {});
  const Id b = ledger.add({{100, 200}}, {{0, 100}});
  const Id c = ledger.add({{99, 100}}, {});
  const Id beside = ledger.add({{100, 120}, {200, 300}}, {});
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, beside), 0U);
  EXPECT_EQ(replay(ledger, b), 0U) << "touching is not overlapping";
  EXPECT_EQ(replay(ledger, c), 0U);
  EXPECT_EQ(replay(ledger, b), c);
}

TEST(PoolLedger, AllowsWritersBesideThePartThatIsRead) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {});
  const Id b = ledger.add({}, {{0, 40}});
  const Id c = ledger.add({{40, 100}}, {});
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, c), 0U);
  EXPECT_EQ(replay(ledger, b), 0U);
}

TEST(PoolLedger, ReadsBelongToTheGraphThatAllocatedTheBytesLast) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {});
  const Id c = ledger.add({{0, 100}}, {});
  const Id b = ledger.add({}, {{0, 100}});  // captured after c: reads c's result
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, b), a);
  EXPECT_EQ(replay(ledger, c), 0U);
  EXPECT_EQ(replay(ledger, b), 0U);
}

TEST(PoolLedger, KeepsWhoWroteLastWhenAGraphIsAdded) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {});
  const Id b = ledger.add({}, {{0, 100}});
  const Id c = ledger.add({{0, 50}}, {});
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, c), 0U);
  const Id late = ledger.add({{20, 30}}, {{60, 70}});  // cuts the cells anew
  EXPECT_EQ(replay(ledger, b), c);
  EXPECT_EQ(replay(ledger, late), 0U);
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, b), 0U);
}

TEST(PoolLedger, SeesAReplayThatOverwroteBeforeTheReaderWasCaptured) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {});
  const Id c = ledger.add({{0, 100}}, {});
  EXPECT_EQ(replay(ledger, c), 0U);
  EXPECT_EQ(replay(ledger, a), 0U);
  const Id reader = ledger.add({}, {{0, 100}});  // of c's result, which is gone
  EXPECT_EQ(replay(ledger, reader), a);
  EXPECT_EQ(replay(ledger, c), 0U);
  EXPECT_EQ(replay(ledger, reader), 0U);
}

TEST(PoolLedger, TellsResultsOfTwoGraphsApartThatTouchEachOther) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {});
  const Id b = ledger.add({{100, 200}}, {});
  const Id reader = ledger.add({}, {{0, 100}, {100, 200}});
  const Id across = ledger.add({}, {{50, 150}});
  for (const Id graph : {a, b, reader, across, b, a, reader, across}) EXPECT_EQ(replay(ledger, graph), 0U);
  const Id c = ledger.add({{90, 100}}, {});
  EXPECT_EQ(replay(ledger, c), 0U);
  EXPECT_EQ(replay(ledger, reader), c);
  EXPECT_EQ(replay(ledger, across), c);
}

TEST(PoolLedger, ForgetsAGraphThatIsGone) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {});
  const Id b = ledger.add({}, {{0, 100}});
  const Id c = ledger.add({{0, 100}}, {});
  ledger.remove(c);
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, b), 0U);
  ledger.remove(b);
  EXPECT_TRUE(ledger.owns(50));
  ledger.remove(a);
  EXPECT_FALSE(ledger.owns(50));
}

TEST(PoolLedger, StillRefusesWhenTheOverwritingGraphIsGone) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {});
  const Id b = ledger.add({}, {{0, 100}});
  const Id c = ledger.add({{0, 100}}, {});
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, c), 0U);
  ledger.remove(c);
  EXPECT_EQ(replay(ledger, b), c) << "the bytes are still garbage";
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, b), 0U);
}

TEST(PoolLedger, RemembersAPartThatAGraphOverwroteBeforeItWasGone) {
  PoolLedger ledger;
  const Id a = ledger.add({{0, 100}}, {});
  const Id b = ledger.add({}, {{0, 100}});
  const Id c = ledger.add({{50, 100}}, {});
  EXPECT_EQ(replay(ledger, a), 0U);
  EXPECT_EQ(replay(ledger, c), 0U);
  ledger.remove(c);
  EXPECT_EQ(replay(ledger, b), c);
}

TEST(PoolLedger, OwnsTheBytesThatGraphsAllocatedAndNoOthers) {
  PoolLedger ledger;
  ledger.add({{10, 20}, {15, 30}, {40, 40}}, {});
  EXPECT_FALSE(ledger.owns(9));
  EXPECT_TRUE(ledger.owns(10));
  EXPECT_TRUE(ledger.owns(29));
  EXPECT_FALSE(ledger.owns(30));
  EXPECT_FALSE(ledger.owns(40));
}

// A model of the pool that keeps, per byte, who wrote it last.
class ByteModel {
 public:
  static constexpr std::size_t kBytes = 48;

  void add(Id graph, const std::vector<ByteSpan>& allocated, const std::vector<ByteSpan>& reads) {
    for_each_byte(reads, [&](std::size_t byte) {
      if (owner_[byte] != 0) wanted_[graph][byte] = owner_[byte];
    });
    for_each_byte(allocated, [&](std::size_t byte) { owner_[byte] = graph; });
    allocated_[graph] = allocated;
  }
  [[nodiscard]] bool harmless(Id graph) {
    const auto& bytes = wanted_[graph];
    return std::all_of(bytes.begin(), bytes.end(),
                       [&](const auto& byte) { return last_[byte.first] == 0 || last_[byte.first] == byte.second; });
  }
  void replay(Id graph) {
    for_each_byte(allocated_[graph], [&](std::size_t byte) { last_[byte] = graph; });
  }

 private:
  template <typename Visit>
  static void for_each_byte(const std::vector<ByteSpan>& spans, const Visit& visit) {
    for (const ByteSpan& span : spans) {
      for (std::size_t byte = span.begin; byte < span.end; ++byte) visit(byte);
    }
  }

  std::vector<Id> owner_ = std::vector<Id>(kBytes, 0), last_ = std::vector<Id>(kBytes, 0);
  std::map<Id, std::vector<ByteSpan>> allocated_;
  std::map<Id, std::map<std::size_t, Id>> wanted_;  // per graph and byte: who has to have written it last
};

TEST(PoolLedger, AgreesWithAByteByByteModel) {
  std::mt19937 random(1);
  const auto pick = [&](std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end)(random); };
  const auto spans = [&](std::size_t most) {
    std::vector<ByteSpan> result;
    for (std::size_t i = pick(most); i > 0; --i) {
      const std::size_t begin = pick(ByteModel::kBytes - 9);
      result.push_back({begin, begin + 1 + pick(7)});
    }
    return result;
  };
  std::size_t refused = 0, allowed = 0;
  for (int round = 0; round < 500; ++round) {
    PoolLedger ledger;
    ByteModel model;
    Id graphs = 0;
    for (int i = 0; i < 60; ++i) {
      if (graphs == 0 || (graphs < 6 && pick(4) == 0)) {
        const std::vector<ByteSpan> allocated = spans(3), reads = spans(2);
        graphs = ledger.add(allocated, reads);
        model.add(graphs, allocated, reads);
        continue;
      }
      const auto graph = static_cast<Id>(1 + pick(graphs - 1));
      const bool harmless = model.harmless(graph);
      ASSERT_EQ(ledger.overwritten_by(graph) == 0, harmless) << "round " << round << " graph " << graph;
      ++(harmless ? allowed : refused);
      if (!harmless) continue;
      ledger.sign(graph);
      model.replay(graph);
    }
  }
  EXPECT_GT(refused, 1000U);
  EXPECT_GT(allowed, 1000U);
}

}  // namespace
}  // namespace pianola::graph::ledger_test
