#include <pianola/memory/apart_plan.hpp>

#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/region_space.hpp>
#include <pianola/memory/testing/random_steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace pianola::memory::apart_plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

MATCHER_P2(IsPieceAt, address, bytes, "") {
  return arg.address == std::uint64_t{address} && arg.bytes == std::uint64_t{bytes};
}

bool is_kept(const Block& block) { return block.freed == Block::kNever; }

const std::vector<Block> kMixed = {{.made = 0, .freed = 4, .bytes = 1000},
                                   {.made = 1, .bytes = 512},
                                   {.made = 2, .freed = 6, .bytes = 512},
                                   {.made = 3, .bytes = 4}};

TEST(ApartPlanTest, EitherKindLiesInARegionOfItsOwn) {
  const ApartPlan plan = plan_apart(kMixed, {});
  EXPECT_EQ(find_flaw(kMixed, plan, {}), std::nullopt);
  EXPECT_EQ(plan.scratch_bytes, 1536U);
  EXPECT_EQ(plan.kept_bytes, 1024U);
  EXPECT_THAT(plan_apart({}, {}).offsets, IsEmpty());
}

TEST(ApartPlanTest, EitherKindLiesAroundWhatIsTakenOfItsRegion) {
  const TakenApart taken = {.of_scratch = {{.address = 1024, .bytes = 512}},
                            .of_kept = {{.address = 0, .bytes = 5120}}};
  const ApartPlan plan = plan_apart(kMixed, taken);
  EXPECT_EQ(find_flaw(kMixed, plan, taken), std::nullopt);
  EXPECT_EQ(plan.scratch_bytes, 2048U);
  EXPECT_EQ(plan.kept_bytes, 6144U);
}

TEST(ApartPlanTest, OverlapsOfEachKindAreNamed) {
  const auto flaw = [](std::vector<std::uint64_t> offsets, const TakenApart& taken = {}) {
    return find_flaw(kMixed, {.offsets = std::move(offsets), .scratch_bytes = 1536, .kept_bytes = 1024}, taken);
  };
  EXPECT_EQ(flaw({0, 0, 1024, 512}), std::nullopt);
  EXPECT_THAT(flaw({0, 0, 512, 512}), Optional(HasSubstr("of what is freed, block 0")));
  EXPECT_THAT(flaw({0, 512, 1024, 512}), Optional(HasSubstr("of what is never freed, block 0")));
  EXPECT_THAT(flaw({0, 0, 1024}), Optional(HasSubstr("3 offsets for 4 blocks")));
  const std::vector<Piece> piece = {{.address = 512, .bytes = 512}};
  EXPECT_THAT(flaw({0, 0, 1024, 512}, {.of_scratch = piece, .of_kept = {}}),
              Optional(AllOf(HasSubstr("of what is freed"), HasSubstr("which are taken"))));
  EXPECT_THAT(flaw({0, 0, 1024, 512}, {.of_scratch = {}, .of_kept = piece}),
              Optional(AllOf(HasSubstr("of what is never freed"), HasSubstr("which are taken"))));
}

TEST(ApartPlanTest, PiecesAreUnitedInWholeUnits) {
  EXPECT_THAT(united({}, {}), IsEmpty());
  const std::vector<Piece> some = {
      {.address = 4096, .bytes = 100}, {.address = 0, .bytes = 513}, {.address = 9216, .bytes = 0}};
  const std::vector<Piece> others = {
      {.address = 512, .bytes = 1024}, {.address = 4608, .bytes = 4}, {.address = 0, .bytes = 4}};
  EXPECT_THAT(united(some, others), ElementsAre(IsPieceAt(0U, 1536U), IsPieceAt(4096U, 1024U)));
}

// Graphs of a pool, captured one after the other, as a pool keeps their memory.
class Bank {
 public:
  // @return  What its plan kept clear of.
  void capture(const std::vector<Block>& blocks, std::mt19937& random) {
    TakenApart taken{.of_scratch = united(scratch_.taken(), {}), .of_kept = kept_.taken()};
    for (const Graph& graph : graphs_) {
      taken.of_kept = united(taken.of_kept, graph.kept);
    }
    const ApartPlan plan = plan_apart(blocks, taken);
    ASSERT_EQ(find_flaw(blocks, plan, taken), std::nullopt);
    scratch_.grow_to(plan.scratch_bytes);
    kept_.grow_to(plan.kept_bytes);
    Graph graph;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Piece piece = {.address = plan.offsets[i], .bytes = in_whole_units(blocks[i].bytes)};
      (is_kept(blocks[i]) ? graph.kept : graph.scratch).push_back(piece);
      if (!is_kept(blocks[i])) continue;
      EXPECT_TRUE(kept_.take(piece));
      if (random() % 3 == 0) kept_.give_back(piece.address);  // nobody holds it any more
    }
    graphs_.push_back(std::move(graph));
  }

  // Runs them in any order: no run may write what another one has left behind.
  void expect_results_survive() const {
    std::map<std::uint64_t, std::size_t> owners;  // of kept units
    for (std::size_t i = 0; i < graphs_.size(); ++i) {
      for (const Piece& piece : graphs_[i].kept) {
        for (std::uint64_t unit = 0; unit < piece.bytes; unit += kBlockUnit) {
          ASSERT_TRUE(owners.emplace(piece.address + unit, i).second) << "graph " << i;
        }
      }
    }
  }
  [[nodiscard]] std::uint64_t bytes() const { return scratch_.bytes() + kept_.bytes(); }

 private:
  struct Graph {
    std::vector<Piece> scratch, kept;
  };
  RegionSpace scratch_, kept_;
  std::vector<Graph> graphs_;
};

TEST(ApartPlanTest, ResultsOfRandomStepsSurviveEachOther) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    Bank bank;
    for (std::uint32_t step = 0; step < 8; ++step) {
      std::vector<Block> blocks = testing::random_step(8 * seed + step);
      for (Block& block : blocks) block.bytes %= 1U << 18U;
      bank.capture(blocks, random);
    }
    bank.expect_results_survive();
  }
}

// 16 lengths of a training step with gradients that go, and some results: all results, and the largest scratch.
TEST(ApartPlanTest, ABankTakesTheLargestScratchAndAllResults) {
  constexpr std::uint64_t kResult = 3U << 20U;
  const auto of_length = [](std::uint64_t length) {
    std::vector<Block> blocks = testing::TrainingStep(3).blocks();
    for (Block& block : blocks) {
      if (is_kept(block)) block.freed = 1 << 30;
      block.bytes = block.bytes / 16 * length;
    }
    blocks.push_back({.made = blocks.back().made / 2, .bytes = kResult});
    std::ranges::stable_sort(blocks, {}, &Block::made);
    return blocks;
  };
  const std::uint64_t alone = plan_offsets(of_length(16)).bytes;
  std::vector<std::uint64_t> lengths(16);
  std::iota(lengths.begin(), lengths.end(), std::uint64_t{1});
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    if (seed == 1) std::ranges::reverse(lengths);
    if (seed > 1) std::ranges::shuffle(lengths, random);
    Bank bank;
    for (const std::uint64_t length : lengths) bank.capture(of_length(length), random);
    bank.expect_results_survive();
    EXPECT_LE(static_cast<double>(bank.bytes()), 1.02 * static_cast<double>(alone + 16 * kResult)) << seed;
  }
}

// One block of each plan is moved onto bytes that are taken, or that another one of its kind has.
TEST(ApartPlanTest, OfTwoThousandRandomPlansEachOverlapIsFound) {
  int overlaps = 0;
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const std::vector<Block> blocks = testing::random_step(seed);
    std::mt19937 random(seed);
    TakenApart taken;
    for (std::vector<Piece>* of : {&taken.of_scratch, &taken.of_kept}) {
      for (std::uint64_t at = 0; of->size() < 10; at += of->back().bytes) {
        at += kBlockUnit * (random() % 4096);
        of->push_back({.address = at, .bytes = kBlockUnit * (1 + random() % 64)});
      }
    }
    ApartPlan plan = plan_apart(blocks, taken);
    ASSERT_EQ(find_flaw(blocks, plan, taken), std::nullopt) << "step " << seed;
    const std::size_t moved = random() % blocks.size();
    const auto move_to = [&](std::uint64_t offset) {
      std::uint64_t& bytes = is_kept(blocks[moved]) ? plan.kept_bytes : plan.scratch_bytes;
      plan.offsets[moved] = offset;
      bytes = std::max(bytes, offset + in_whole_units(blocks[moved].bytes));
    };
    const std::vector<Piece>& of = is_kept(blocks[moved]) ? taken.of_kept : taken.of_scratch;
    const std::uint64_t before = plan.offsets[moved];
    move_to(of[random() % of.size()].address);
    ASSERT_THAT(find_flaw(blocks, plan, taken), Optional(HasSubstr("which are taken"))) << "step " << seed;
    move_to(before);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const bool live_at_once = blocks[i].made < blocks[moved].freed && blocks[moved].made < blocks[i].freed;
      if (i == moved || is_kept(blocks[i]) != is_kept(blocks[moved]) || !live_at_once) continue;
      move_to(plan.offsets[i]);
      ASSERT_NE(find_flaw(blocks, plan, taken), std::nullopt) << "step " << seed;
      ++overlaps;
      break;
    }
  }
  EXPECT_GT(overlaps, 1800);
}

}  // namespace
}  // namespace pianola::memory::apart_plan_test
