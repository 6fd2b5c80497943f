// What decide() says of memory; see Note [Memory of a scope] and TrainingMemory for the numbers.
#include <pianola/profile/decide/decision.hpp>

#include <pianola/profile/testing/training_timeline.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace pianola::scope_memory_test {
namespace {

using profiling::testing::training_timeline;
using profiling::testing::TrainingShape;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;

constexpr std::uint64_t kMiB = 1U << 20U;
constexpr std::uint64_t kNode = 1600;  // MachineModel::node_bytes

struct Judged {
  explicit Judged(const TrainingShape& shape)
      : timeline(training_timeline(shape)), decision(decide(timeline, analyse(timeline))) {}
  [[nodiscard]] const ScopeMemory& memory(GraphScope scope) const {
    return decision.scopes.at(static_cast<std::size_t>(scope)).memory;
  }
  Timeline timeline;
  Decision decision;
};

// Scratch takes a segment of 2 MiB. Large blocks, in MiB, by their layers 0 to 3: activations a, gradients g, gradients
// of inputs i, when the passes have ended; "-" is free.
//
//                    segments of 20 MiB                                       of 12
//   forward          a0 8, a1 8, - 4    a2 8, a3 8, - 4
//   backward of 3    a0 8, a1 8, - 4    a2 8, - 12        i3 8, - 12          g3
//   of 2             a0 8, a1 8, - 4    - 8, g2 12        - 8, i2 8, - 4      g3
//   of 1             a0 8, - 12         i1 8, g2 12       - 20                g3  g1
//   of 0             - 8, g0 12         - 8, g2 12        - 20                g3  g1
//
// Nowhere are 24 MiB free for the optimizer.
constexpr std::uint64_t kScratch = 2 * kMiB, kPasses = (3 * 20 + 2 * 12) * kMiB, kOptimizer = 24 * kMiB;

TEST(ScopeMemoryTest, ThePoolOfAnIterationHoldsAllThatItAllocates) {
  EXPECT_THAT(Judged({.memory = true}).memory(GraphScope::iteration).pool, Optional(kScratch + kPasses + kOptimizer));
}

TEST(ScopeMemoryTest, WithoutTheOptimizerItsScratchIsNotInThePool) {
  const Judged step({.memory = true});
  EXPECT_THAT(step.memory(GraphScope::without_optimizer).pool, Optional(kScratch + kPasses));
  EXPECT_THAT(step.memory(GraphScope::forward_backward).pool, Optional(kScratch + kPasses));
}

// 32 MiB of activations stay, and 16 of inputs' gradients do not reuse them: 48, in 3 segments of 20.
TEST(ScopeMemoryTest, LayersKeepTheirActivations) {
  EXPECT_THAT(Judged({.memory = true}).memory(GraphScope::layers).pool, Optional(kScratch + (60 + 48) * kMiB));
}

// 24 MiB, which live until the next iteration begins: a segment of their own.
TEST(ScopeMemoryTest, TheBatchIsMadeInsideAnIterationAndCopiedForACallable) {
  const Judged step({.memory = true, .batch = 24});
  EXPECT_THAT(step.memory(GraphScope::iteration).pool, Optional(kScratch + kPasses + kOptimizer + 24 * kMiB));
  EXPECT_EQ(step.memory(GraphScope::iteration).inputs, 0U);
  EXPECT_EQ(step.memory(GraphScope::without_optimizer).inputs, 0U);
  EXPECT_THAT(step.memory(GraphScope::forward_backward).pool, Optional(kScratch + kPasses));
  EXPECT_EQ(step.memory(GraphScope::forward_backward).inputs, 24 * kMiB);
  EXPECT_EQ(step.memory(GraphScope::layers).inputs, 24 * kMiB);
}

// 40 kernels forward, 80 backward, 5 of the optimizer, and the copy of the batch.
TEST(ScopeMemoryTest, AnExecutableTakesMemoryForEachOfItsNodes) {
  const Judged step({.batch = 4});
  EXPECT_EQ(step.memory(GraphScope::iteration).executables, 126 * kNode);
  EXPECT_EQ(step.memory(GraphScope::without_optimizer).executables, 121 * kNode);
  EXPECT_EQ(step.memory(GraphScope::forward_backward).executables, 120 * kNode);
  EXPECT_EQ(step.memory(GraphScope::layers).executables, 120 * kNode);
}

TEST(ScopeMemoryTest, TheModelSaysHowMuchANodeTakes) {
  const Timeline timeline = training_timeline({});
  const Decision decision = decide(timeline, analyse(timeline), {.node_bytes = 100});
  EXPECT_EQ(decision.scopes.back().memory.executables, 12'500U);
}

// The optimizer is told by its kernels: what is made between the first and the last of them is its own.
TEST(ScopeMemoryTest, WithoutRangesTheOptimizersMemoryIsToldByItsKernels) {
  const Judged step({.ranges = false, .memory = true});
  EXPECT_THAT(step.memory(GraphScope::iteration).pool, Optional(kScratch + kPasses + kOptimizer));
  EXPECT_THAT(step.memory(GraphScope::without_optimizer).pool, Optional(kScratch + kPasses));
}

TEST(ScopeMemoryTest, OfAScopeThatCannotBePredictedNothingIsSaid) {
  const Judged step({.ranges = false, .memory = true});
  const ScopeMemory& layers = step.memory(GraphScope::layers);
  EXPECT_FALSE(layers.pool);
  EXPECT_EQ(layers.executables, 0U);
}

// With autograd's nodes alone, as in C++, forward passes are told from nothing but the optimizer.
TEST(ScopeMemoryTest, WhereNoModuleIsNamedAllButTheOptimizerCountsAsForward) {
  Timeline timeline = training_timeline({.memory = true, .batch = 24});
  std::erase_if(timeline.ranges, [](const HostRange& range) { return range.kind == HostRange::Kind::module; });
  const Decision decision = decide(timeline, analyse(timeline));
  const ScopeMemory& memory = decision.scopes.at(static_cast<std::size_t>(GraphScope::forward_backward)).memory;
  EXPECT_THAT(memory.pool, Optional(kScratch + kPasses + 24 * kMiB));
  EXPECT_EQ(memory.executables, 121 * kNode);
}

TEST(ScopeMemoryTest, WithoutEventsOfTheAllocatorThePoolIsUnknownAndItIsSaidHowToRecordThem) {
  const Judged step({});
  for (const ScopePrediction& scope : step.decision.scopes) EXPECT_FALSE(scope.memory.pool);
  EXPECT_THAT(step.decision.memory_unknown,
              AllOf(HasSubstr("the profile has no events of torch's allocator"), HasSubstr("profile_memory=True"),
                    HasSubstr("the recorder of `pianola profile` does not see the allocator")));
  EXPECT_EQ(Judged({.memory = true}).decision.memory_unknown, "");
}

}  // namespace
}  // namespace pianola::scope_memory_test
