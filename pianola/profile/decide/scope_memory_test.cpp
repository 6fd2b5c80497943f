// What decide() says of memory; see Note [Memory of a scope] and TrainingMemory for the numbers.
#include <pianola/profile/decide/decision.hpp>

#include <pianola/profile/testing/training_timeline.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace pianola::scope_memory_test {
namespace {

using profiling::testing::training_timeline;
using profiling::testing::TrainingShape;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::SizeIs;

constexpr std::uint64_t kMiB = 1U << 20U;
constexpr std::uint64_t kNode = 1600;  // MachineModel::node_bytes

struct Judged {
  explicit Judged(Timeline of) : timeline(std::move(of)), decision(decide(timeline, analyse(timeline))) {}
  explicit Judged(const TrainingShape& shape) : Judged(training_timeline(shape)) {}
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
  const Judged step(TrainingShape{});
  for (const ScopePrediction& scope : step.decision.scopes) EXPECT_FALSE(scope.memory.pool);
  EXPECT_THAT(step.decision.memory_unknown,
              AllOf(HasSubstr("the profile has no events of torch's allocator"), HasSubstr("profile_memory=True"),
                    HasSubstr("the recorder of `pianola profile` does not see the allocator"),
                    HasSubstr("`pianola memory --scopes FILE.py:FUNCTION` tells it without a profile")));
}

// What pianola.profile() found left; nothing of it is torch's.
Judged judged_with_left(std::uint64_t mib, TrainingShape shape = {}) {
  shape.memory = true;
  Timeline timeline = training_timeline(shape);
  timeline.devices = {{.left = memory::FreeMemory{.of_driver = mib * kMiB}}};
  return Judged(std::move(timeline));
}

TEST(ScopeMemoryTest, WhereThereIsRoomEachScopeFitsAndHasTheNumbers) {
  const Judged step = judged_with_left(1024);
  EXPECT_EQ(step.decision.memory_unknown, "");
  for (const ScopePrediction& scope : step.decision.scopes) {
    EXPECT_THAT(scope.memory.fits, Optional(true)) << in_words(scope.scope);
    EXPECT_STREQ(fit_in_words(scope.memory), "yes");
    EXPECT_THAT(scope.memory.verdict, HasSubstr("It fits: a capture takes"));
  }
  EXPECT_THAT(step.memory(GraphScope::iteration).verdict, HasSubstr("takes 110.2 MiB of the driver"));
  EXPECT_EQ(step.decision.verdict, GraphVerdict::graph);
}

// 86 MiB of the passes fit, with 191 KiB of executables; 110 of the iteration do not.
TEST(ScopeMemoryTest, AScopeThatDoesNotFitIsNotAdvisedAndItIsSaidWhatToDo) {
  const Judged step = judged_with_left(100);
  const Decision& decision = step.decision;
  EXPECT_STREQ(fit_in_words(step.memory(GraphScope::iteration)), "no");
  EXPECT_STREQ(fit_in_words(step.memory(GraphScope::layers)), "no");
  EXPECT_STREQ(fit_in_words(step.memory(GraphScope::forward_backward)), "yes");
  EXPECT_EQ(decision.verdict, GraphVerdict::graph);
  EXPECT_THAT(decision.scopes[decision.best].scope, AnyOf(GraphScope::forward_backward, GraphScope::without_optimizer));
  EXPECT_EQ(decision.scopes.back().obstacle, "it does not fit into the memory that is left");
  EXPECT_THAT(decision.obstacles,
              Contains(AllOf(HasSubstr("whole iteration: It does not fit: a capture takes 110.2 MiB of the driver"),
                             HasSubstr("the driver has 100.0 MiB left"),
                             HasSubstr("take iteration without optimizer, or smaller batches"))));
}

TEST(ScopeMemoryTest, WhereAPlanMakesItFitItsPoolIsTold) {
  const ScopeMemory with_little = judged_with_left(100).memory(GraphScope::iteration);
  ASSERT_TRUE(with_little.planned) << "73 MiB are in use at a time";
  EXPECT_GE(*with_little.planned, 73 * kMiB);
  EXPECT_LT(*with_little.planned, 100 * kMiB);
  EXPECT_THAT(judged_with_left(100).decision.obstacles, Contains(HasSubstr("Set plan_memory: its pool takes")));
  EXPECT_FALSE(judged_with_left(72).memory(GraphScope::iteration).planned);
  EXPECT_FALSE(judged_with_left(1024).memory(GraphScope::iteration).planned) << "it fits as it is";
}

TEST(ScopeMemoryTest, WhereNoScopeFitsThereIsNoAdviceToGraph) {
  const Decision decision = judged_with_left(10).decision;
  EXPECT_EQ(decision.verdict, GraphVerdict::leave);
  EXPECT_THAT(decision.headline,
              HasSubstr("Leave it: no graph fits into the memory that is left; forward and backward takes least."));
  EXPECT_THAT(decision.obstacles, SizeIs(kGraphScopes));
  EXPECT_THAT(decision.obstacles, Each(HasSubstr("Take a smaller part of the iteration, or smaller batches.")));
}

TEST(ScopeMemoryTest, WhatTorchGivesBackDoesNotRuleAScopeOut) {
  Timeline timeline = training_timeline({.memory = true});
  timeline.devices = {{.left = memory::FreeMemory{.cached = 300 * kMiB, .returnable = 200 * kMiB}}};
  const Judged step(std::move(timeline));
  EXPECT_STREQ(fit_in_words(step.memory(GraphScope::iteration)), "not yet");
  EXPECT_EQ(step.decision.verdict, GraphVerdict::graph);
  EXPECT_EQ(step.decision.scopes.back().obstacle, "");
}

TEST(ScopeMemoryTest, WithoutWhatTheDeviceHasOnlyTheRoomIsUnknown) {
  const Judged step({.memory = true});
  EXPECT_TRUE(step.memory(GraphScope::iteration).pool);
  EXPECT_FALSE(step.memory(GraphScope::iteration).fits);
  EXPECT_STREQ(fit_in_words(step.memory(GraphScope::iteration)), "");
  EXPECT_THAT(step.decision.memory_unknown,
              AllOf(HasSubstr("whether a graph fits is unknown"), HasSubstr("pianola memory --scopes")));
}

}  // namespace
}  // namespace pianola::scope_memory_test
