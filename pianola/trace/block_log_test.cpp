#include <pianola/trace/block_log.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/testing/device_test.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

namespace pianola::testing::block_log_test {
namespace {

using trace::BlockLog;
using trace::OpStream;
using trace::StepBlock;

constexpr std::int64_t kMany = 1 << 18;  // floats: a MiB

class BlockLogTest : public DeviceTest {
 protected:
  static at::Tensor block() { return at::empty({kMany}, device()); }

  template <class Step>
  static std::vector<StepBlock> blocks_of(const Step& step) {
    const at::Tensor first_use_of_the_allocator = block();
    BlockLog log;
    const OpStream stream({&log});
    step();
    return log.blocks(device());
  }
};
PIANOLA_ON_EVERY_DEVICE(BlockLogTest);

TEST_P(BlockLogTest, ABlockLivesUntilItsTensorIsGone) {
  at::Tensor kept;
  const auto blocks = blocks_of([&] {
    std::optional<at::Tensor> scratch = block();
    kept = block();
    scratch.reset();
  });
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[0].life.bytes, 4U * kMany);
  EXPECT_LT(blocks[0].life.made, blocks[1].life.made);
  EXPECT_LT(blocks[1].life.made, blocks[0].life.freed);
  EXPECT_EQ(blocks[1].life.freed, memory::Block::kNever);
  EXPECT_EQ(blocks[0].made_in, 0);
  EXPECT_EQ(blocks[0].freed_in, 1);
  EXPECT_EQ(blocks[1].freed_in, -1);
}

TEST_P(BlockLogTest, WhatWasThereBeforeIsNoBlockOfTheStep) {
  std::optional<at::Tensor> before = block();
  EXPECT_TRUE(blocks_of([&] { before.reset(); }).empty());
}

TEST_P(BlockLogTest, ABlockThatAnotherThreadFreesIsFreed) {
  const auto blocks = blocks_of([&] {
    at::Tensor made = block();
    std::thread([given = std::exchange(made, at::Tensor())] { (void)given; }).join();
  });
  ASSERT_EQ(blocks.size(), 1U);
  EXPECT_NE(blocks[0].life.freed, memory::Block::kNever);
}

TEST_P(BlockLogTest, ABlockOfAnotherThreadIsKnownAsSuch) {
  const std::vector<StepBlock> blocks = blocks_of([] {
    const at::Tensor own = block();
    std::thread([] { (void)at::empty({2 * kMany}, device()); }).join();
  });
  ASSERT_FALSE(blocks.empty());
  for (const StepBlock& block : blocks) EXPECT_EQ(block.by_own_thread, block.life.bytes == kMany * sizeof(float));
}

TEST(BlockLogRunTest, TheMainStreamIsThatOnWhichTheStepsThreadAskedForTheMost) {
  const std::vector<StepBlock> blocks = {{.life = {.bytes = 512}, .stream = 6, .by_own_thread = true},
                                         {.life = {.bytes = 4096}, .stream = 7, .by_own_thread = true},
                                         {.life = {.bytes = 1 << 20}, .stream = 9}};
  EXPECT_EQ(trace::run_of(blocks, {}).main, 7U);
  EXPECT_EQ(trace::run_of({blocks.back()}, {}).main, std::nullopt);
}

TEST_P(BlockLogTest, WhatPianolaAsksForIsNoBlockOfTheStep) {
  at::Tensor own, steps;
  const auto blocks = blocks_of([&] {
    {
      const trace::OwnMemory asked_for;
      own = block();
    }
    steps = block();
    own.reset();
  });
  EXPECT_EQ(blocks.size(), 1U);
}

TEST_P(BlockLogTest, TensorsOutliveTheLogThatSawThem) {
  at::Tensor kept;
  (void)blocks_of([&] { kept = block(); });
  EXPECT_EQ(kept.fill_(1).sum().item<float>(), static_cast<float>(kMany));
  kept.resize_({2 * kMany}).fill_(2);
  EXPECT_EQ(kept.sum().item<float>(), 4.0F * kMany);
}

// Saved for the backward pass, and freed by it: on a GPU by autograd's thread, which may be behind, and first makes its workspace.
TEST_P(BlockLogTest, WhatTheBackwardPassNeedsLivesUntilThen) {
  const at::Tensor weight = at::ones({512, 512}, device()).requires_grad_();
  bool are_all_freed = false;
  for (int tries = 0; tries < 20 && !are_all_freed; ++tries) {
    const auto blocks = blocks_of([&] {
      const at::Tensor hidden = at::mm(weight, weight).relu();
      torch::autograd::grad({hidden.square().sum()}, {weight});
    });
    ASSERT_GE(blocks.size(), 4U);
    EXPECT_GT(blocks[1].freed_in, 3) << "in the backward pass";
    are_all_freed =
        std::ranges::none_of(blocks, [](const StepBlock& one) { return one.life.freed == memory::Block::kNever; });
  }
  EXPECT_TRUE(are_all_freed);
}

// A process's own allocator with a priority stays for good: in a process of its own.
TEST(BlockLogDeathTest, AnAllocatorThatCannotBeWatchedIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        c10::SetCPUAllocator(c10::GetCPUAllocator(), 200);
        try {
          const BlockLog log;
          (void)log.blocks(c10::kCPU);
        } catch (const UnsupportedError& error) {
          (void)std::fputs(error.what(), stderr);
          std::_Exit(3);
        }
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(3),
      "memory of the CPU cannot be watched: another allocator is in the place of torch's");
}

}  // namespace
}  // namespace pianola::testing::block_log_test
