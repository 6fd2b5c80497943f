#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/nonzero.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#if PIANOLA_WITH_CUDA
#include <pianola/cuda/memory_account.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

namespace pianola::failure_test {
namespace {

using testing::clone_all;
using testing::expect_same;
using testing::same;
using testing::Training;

struct UserError {};

// A capture that fails leaves nothing behind, however often.
class FailureTest : public testing::DeviceTest {
 protected:
  /// Memory that this process uses, in bytes: on the device, allocated and reserved by torch; on the host, handed out by
  /// malloc. Tensors of the CPU are in the latter.
  struct Level {
    std::int64_t allocated = 0, reserved = 0, host = 0;
    friend std::ostream& operator<<(std::ostream& out, const Level& level) {
      return out << "allocated " << level.allocated << ", reserved " << level.reserved << ", host " << level.host;
    }
  };

  static constexpr std::int64_t kSegment = 2 << 20;  // the allocator's smallest

  static Level level() {
    Level level{.host = static_cast<std::int64_t>(mallinfo2().uordblks)};
#if PIANOLA_WITH_CUDA
    if (on_cuda()) {
      synchronize();
      const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device().index());
      level.allocated = stats.allocated_bytes[0].current;
      level.reserved = stats.reserved_bytes[0].current;
    }
#endif
    return level;
  }

  // Device memory to the byte, of which there may be less: a cache that settled late has let go of some. Autograd's thread
  // may hold what it worked on for a while after backward() has returned; a capture that begins meanwhile may need one
  // segment more, which stays reserved. On the host tables of libraries grow by a step now
  // and then.
  static void expect_level(const Level& settled, const Level& found, int rounds) {
    Level now = found;
    for (int i = 0; i < 100 && now.allocated > settled.allocated; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      now = level();
    }
    EXPECT_LE(now.allocated, settled.allocated);
    EXPECT_LE(now.reserved, settled.reserved + kSegment);
#if !defined(__SANITIZE_ADDRESS__)  // whose malloc keeps no such account
    EXPECT_LT(found.host - settled.host, rounds * std::int64_t{1024})
        << "host memory, " << found << " after " << settled;
#endif
  }

  // The lowest on the host, of twenty more rounds. With expandable segments torch counts wrong where one has grown, and keeps a
  // record of each pool that ended (Note [Pools of expandable segments end empty]). That takes 0.4 KiB, which expect_level()
  // allows. And the pool's name serves no other one: 47 KiB of lists go with each, once there are sixteen.
  static Level lowest_level(const std::function<void()>& round) {
    Level lowest = level();
    for (int i = 0; i < 20; ++i) {
      round();
      const Level now = level();
      if (now.host < lowest.host) lowest = now;
    }
    return lowest;
  }

  // What the driver took from the device, of which torch knows nothing. Free memory of the device is that of all processes,
  // so that another one may take some in between: not in each of many rounds.
  static void expect_driver_takes_nothing(const std::function<void()>& round) {
#if PIANOLA_WITH_CUDA
    if (!on_cuda()) return;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < 50 && least > 0; ++i) {
      synchronize();
      const MemoryAccount account;
      round();
      synchronize();
      least = std::min(least, account.taken_bytes());
    }
    EXPECT_LE(least, 0) << "in the best of fifty rounds";
#else
    (void)round;
#endif
  }

  static void expect_200_failures_leave_memory_level(const std::function<void(Training&)>& failing) {
    Training(device(), 0.2).step();  // loads the device's libraries: the captures below do not warm up
    Training training(device(), 0.2);
    const auto before = clone_all(training.state());
    Graph graph(device());
    const auto fail_once = [&] {
      try {
        graph.capture(
            [&] {
              training.step();
              failing(training);
            },
            {.warmup = 0});
        ADD_FAILURE() << "nothing was thrown";
      } catch (const UserError&) {
      } catch (const CaptureError&) {
      }
      const at::Tensor output = training.output;
      training.output.reset();
      training.loss.reset();
      training.gradients.clear();
      EXPECT_EQ(output.storage().use_count(), 1U) << "somebody else holds on to a result";
    };
    for (int i = 0; i < 20; ++i) fail_once();
    const Level settled = lowest_level(fail_once);
    for (int i = 0; i < 180; ++i) fail_once();
    expect_level(settled, lowest_level(fail_once), 200);
    expect_driver_takes_nothing([&] {
      for (int i = 0; i < 40; ++i) fail_once();
    });
    expect_same(training.state(), before, "after all failures");

    seed(4);
    Training eager(device(), 0.2);
    std::vector<testing::NamedTensors> expected;
    for (int step = 0; step < 3; ++step) {
      eager.step();
      expected.push_back(clone_all(eager.everything()));
    }
    seed(4);
    graph.capture([&] { training.step(); });
    for (int step = 0; step < 3; ++step) {
      graph.replay();
      expect_same(training.everything(), expected[static_cast<std::size_t>(step)], "in step " + std::to_string(step));
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(FailureTest);

TEST_P(FailureTest, TwoHundredThrowsOfTheUserLeaveMemoryLevel) {
  expect_200_failures_leave_memory_level([](Training&) { throw UserError(); });
}

TEST_P(FailureTest, TwoHundredHostReadsLeaveMemoryLevel) {
  expect_200_failures_leave_memory_level([](Training& training) { (void)training.loss.item<float>(); });
}

TEST_P(FailureTest, TwoHundredDynamicShapesLeaveMemoryLevel) {
  expect_200_failures_leave_memory_level([](Training& training) { (void)at::nonzero(training.output); });
}

TEST_P(FailureTest, SuccessfulCapturesThatAreDroppedLeaveMemoryLevel) {
  Training training(device(), 0.2);
  const auto capture_and_drop = [&] {
    Graph graph(device());
    graph.capture([&] { training.step(); }, {.warmup = 1});
    graph.replay();
    const at::Tensor output = training.output;
    training.output.reset();
    training.loss.reset();
    training.gradients.clear();
    graph.reset();
    EXPECT_EQ(output.storage().use_count(), 1U) << "the graph still holds a result";
  };
  for (int i = 0; i < 10; ++i) capture_and_drop();
  const Level settled = level();
  for (int i = 0; i < 50; ++i) capture_and_drop();
  expect_level(settled, level(), 50);
}

TEST_P(FailureTest, AGraphHoldsNoInputOfACaptureThatFailed) {
  const at::Tensor x = randn({8});
  const at::Tensor loads_the_kernel = x * 2;
  Graph graph(device());
  const auto step = [&] {
    const at::Tensor y = x * 2;
    throw UserError();
  };
  for (const int warmup : {0, 1}) {
    EXPECT_THROW(graph.capture(step, {.warmup = warmup, .inputs = {x}}), UserError);
    EXPECT_EQ(x.use_count(), 1U) << warmup;
    EXPECT_EQ(x.storage().use_count(), 1U) << warmup;
  }
}

// A step of twelve operations, written by hand so that it can stop after each of them.
TEST_P(FailureTest, AThrowAfterWhicheverOperationLeavesTheStateAsItWas) {
  const at::Tensor x = randn({4, 16}), state = randn({4, 16}, 2), w = randn({16, 16}, 3).requires_grad_();
  struct Step {
    int allowed;
    void operator()() {
      if (allowed-- == 0) throw UserError();
    }
  };
  const auto run = [&](int allowed) {
    Step next{allowed};
    next();
    at::Tensor h = x.matmul(w);
    next();
    h = at::dropout(h, 0.3, true);
    next();
    state.add_(h.detach());
    next();
    const at::Tensor loss = at::gelu(h).mul(state).sum();
    next();
    loss.backward();
    next();
    const at::NoGradGuard no_grad;
    w.sub_(w.grad(), 0.1);
    next();
    w.mutable_grad().reset();
    next();
    state.mul_(0.5);
    next();
    x.add_(state.uniform_());
    next();
  };
  const at::Tensor x0 = x.clone(), state0 = state.clone(), w0 = w.detach().clone();
  const at::Tensor generator0 = state_of(generator());
  constexpr int kOperations = 10;
  for (const int warmup : {0, 1}) {
    for (int allowed = 0; allowed <= kOperations; ++allowed) {
      SCOPED_TRACE("after operation " + std::to_string(allowed) + ", warmup " + std::to_string(warmup));
      Graph graph(device());
      int runs = 0;
      const auto step = [&] { run(runs++ == warmup ? allowed : kOperations); };
      if (allowed < kOperations) {
        EXPECT_THROW(graph.capture(step, {.warmup = warmup}), UserError);
      } else {
        graph.capture(step, {.warmup = warmup});  // past the last: the good path ran too
      }
      EXPECT_EQ(graph.captured(), allowed == kOperations);
      EXPECT_TRUE(same(x, x0));
      EXPECT_TRUE(same(state, state0));
      EXPECT_TRUE(same(w.detach(), w0));
      EXPECT_FALSE(w.grad().defined());
      EXPECT_TRUE(same(state_of(generator()), generator0));
    }
  }
}

// Refuses blocks of one size, as an allocator that has run out of memory.
class Scarce final : public c10::Allocator {
 public:
  explicit Scarce(std::size_t refused) : usual_(c10::GetCPUAllocator()), refused_(refused) {
    c10::SetCPUAllocator(this);
  }
  Scarce(const Scarce&) = delete;
  Scarce& operator=(const Scarce&) = delete;
  ~Scarce() override { c10::SetCPUAllocator(usual_); }

  c10::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK(bytes != refused_, "no room for ", bytes, " bytes");
    return usual_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return usual_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { usual_->copy_data(to, from, bytes); }

 private:
  c10::Allocator* usual_;
  std::size_t refused_;
};

// What is to be put back is copied first, in the callback of the operation that writes it, which cannot be stopped.
TEST(FailureOfAnObserver, WhatIsToBePutBackIsCopiedBesideAnAllocatorThatHasNoRoom) {
  const at::Tensor x = at::ones({777}), before = x.clone(), after = x * 2;
  const auto step = [&] { x.mul_(2); };
  for (const int warmup : {0, 1}) {
    Graph graph(c10::kCPU);
    const Scarce scarce(x.nbytes());
    graph.capture(step, {.warmup = warmup});
    EXPECT_TRUE(same(x, before));
    graph.replay();
    EXPECT_TRUE(same(x, after));
    x.fill_(1);
  }
}

// A generator's state is copied in the callback of the operation that draws.
TEST(FailureOfAnObserver, EndsTheCaptureWithAnErrorThatNamesTheOperation) {
  at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU);
  const at::Tensor y = at::ones({8});
  const at::Tensor before = y.clone(), state = generator.get_state();
  bool no_room = true;
  const auto step = [&] {
    y.add_(1);
    std::optional<Scarce> scarce;
    if (no_room) scarce.emplace(state.nbytes());
    y.bernoulli_(0.5);
    scarce.reset();
    y.mul_(3);
  };
  Graph graph(c10::kCPU);
  EXPECT_THAT(testing::refusal<CaptureError>("a step whose operations cannot be recorded",
                                             [&] { graph.capture(step, {.warmup = 0}); }),
              ::testing::AllOf(::testing::HasSubstr("could not be recorded, from aten::bernoulli_ on: no room for"),
                               ::testing::HasSubstr("may not have been put back"), ::testing::HasSubstr("fix:")));
  no_room = false;
  EXPECT_TRUE(same(y, before)) << "what was copied before is put back";
  EXPECT_TRUE(same(generator.get_state(), state));
  EXPECT_FALSE(is_capturing());
  graph.capture(step, {.warmup = 1});
  EXPECT_TRUE(same(y, before));
  graph.replay();
}

}  // namespace
}  // namespace pianola::failure_test
