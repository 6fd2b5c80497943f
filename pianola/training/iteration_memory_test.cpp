// Whole iterations without memory, or whose pool sleeps.
#include <pianola/training/full_iteration.hpp>

#include <pianola/callable/testing/twins.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/failing_memory.hpp>
#include <pianola/training/static_inputs.hpp>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::iteration_memory_test {
namespace {

using testing::expect_same;
using testing::FailingMemory;
using testing::FusedAdam;
using ::testing::HasSubstr;
using testing::MlpNet;
using ::testing::ThrowsMessage;

class IterationMemoryTest : public testing::CallableTest {
 protected:
  using Microbatches = std::vector<c10::IValue>;

  struct Trainee {
    std::shared_ptr<MlpNet> net = make_net<MlpNet>();
    FusedAdam adam{net->parameters()};

    c10::IValue train(const Microbatches& microbatches) {
      net->zero_grad();
      const at::Tensor loss = net->forward(microbatches.at(0).toTensor()).square().mean();
      loss.backward();
      adam.step();
      return loss.detach();
    }
    [[nodiscard]] testing::NamedTensors state() const { return state_of_module(*net); }
  };

  static at::Tensor batch(std::uint64_t call, std::int64_t rows = 8) {
    seed(100 + call);
    return randn({rows, 12}, 100 + call);
  }

  static constexpr std::uint64_t kCaptured = 3;  // this call, from 0, is

  struct Call {
    std::function<void(const at::Tensor& x)> prepare;
    std::function<c10::IValue(FullIteration& iteration)> run;
    bool has_one_capture =
        true;  // else one may have defined gradients, which the step throws away, before another fails
  };

  // One allocation of the call that captures fails. A capture throws then, by torch's name, and has done nothing: called once more, the
  // iteration is captured. On the tape a replay asks for scratch, as eager iterations do. @return  Whether one failed at all; and was
  // refused.
  static std::pair<bool, bool> fails_at(FailingMemory& memory, int number, const Call& call) {
    Trainee graphed, eager;
    FullIteration iteration([&](const Microbatches& one) { return graphed.train(one); });
    bool failed = false, refused = false;
    for (std::uint64_t i = 0; i < kCaptured + 3; ++i) {
      const c10::IValue expected = eager.train({batch(i)});
      std::optional<c10::IValue> loss;
      const testing::NamedTensors before = testing::clone_all(graphed.state());
      call.prepare(batch(i));
      if (i == kCaptured) memory.fail_at(number);
      try {
        loss = call.run(iteration);
      } catch (const c10::OutOfMemoryError& error) {
        refused = true;
        if (std::string(error.what()).find("in a replay: ") != std::string::npos) return {true, false};
      } catch (const OutOfMemoryError&) {
        refused = true;
      }
      failed = memory.fail_at(0) || failed;
      if (!loss) {
        expect_same(kept(graphed.state(), call), kept(before, call), "after the failure");
        loss = call.run(iteration);
      }
      expect_same({{"loss", loss->toTensor()}}, {{"loss", expected.toTensor()}}, "in call " + std::to_string(i));
      expect_same(graphed.state(), eager.state(), "after call " + std::to_string(i));
    }
    return {failed, refused};
  }

  static testing::NamedTensors kept(testing::NamedTensors state, const Call& call) {
    return call.has_one_capture ? state : without_gradients(std::move(state));
  }
  static testing::NamedTensors without_gradients(testing::NamedTensors state) {
    std::erase_if(state, [](const auto& one) { return one.first.ends_with(".grad"); });
    return state;
  }

  static int count_of_refusals(const Call& call) {
    FailingMemory memory(device());
    int refusals = 0;
    for (int number = 1; !HasFailure(); ++number) {
      SCOPED_TRACE("allocation " + std::to_string(number));
      const auto [failed, refused] = fails_at(memory, number, call);
      refusals += refused ? 1 : 0;
      if (!failed) break;
    }
    return refusals;
  }
};
PIANOLA_ON_EVERY_DEVICE(IterationMemoryTest);

TEST_P(IterationMemoryTest, AtEachAllocationOfTheCallThatIsCapturedNothingIsLost) {
  PIANOLA_SKIP_WHERE_NO_ALLOCATION_CAN_FAIL();
  Microbatches microbatches;
  const Call call = {.prepare = [&](const at::Tensor& x) { microbatches = {x}; },
                     .run = [&](FullIteration& iteration) { return iteration(microbatches); }};
  EXPECT_GT(count_of_refusals(call), on_cuda() ? 15 : 30);
}

TEST_P(IterationMemoryTest, AtEachAllocationOfTheCallThatCapturesAllBucketsNothingIsLost) {
  PIANOLA_SKIP_WHERE_NO_ALLOCATION_CAN_FAIL();
  StaticInputs inputs(device(), {.buckets = {.sizes = {4, 8}, .dim = 0}});
  const Call call = {.prepare = [&](const at::Tensor& x) { inputs.load({x}); },
                     .run = [&](FullIteration& iteration) { return iteration(inputs); },
                     .has_one_capture = false};
  EXPECT_GT(count_of_refusals(call), on_cuda() ? 20 : 40);
}

TEST_P(IterationMemoryTest, AnIterationWhosePoolSleepsIsRefusedAndDoesNothing) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  GraphPool pool(device(), {.can_sleep = true});
  Trainee graphed, eager;
  FullIteration iteration([&](const Microbatches& one) { return graphed.train(one); }, {.pool = pool});
  const auto expect_as_eager = [&](std::uint64_t number, std::int64_t rows) {
    const c10::IValue expected = eager.train({batch(number, rows)});
    const c10::IValue loss = iteration(Microbatches{batch(number, rows)});
    expect_same({{"loss", loss.toTensor()}}, {{"loss", expected.toTensor()}}, "in call " + std::to_string(number));
    expect_same(graphed.state(), eager.state(), "after call " + std::to_string(number));
  };
  for (std::uint64_t i = 0; i < 5; ++i) expect_as_eager(i, 8);
  (void)pool.suspend();
  const auto awake = [&] { return without_gradients(graphed.state()); };  // those lie in the pool
  const testing::NamedTensors before = testing::clone_all(awake());
  const at::Tensor x = batch(4, 8);
  EXPECT_THAT([&] { (void)iteration(Microbatches{x}); },
              ThrowsMessage<UsageError>(HasSubstr("a graph whose pool is asleep; nothing was launched")));
  expect_same(awake(), before, "while the pool sleeps");
  for (std::uint64_t i = 5; i < 8; ++i) expect_as_eager(i, 4);  // they warm up
  EXPECT_THAT([&] { (void)iteration(Microbatches{batch(8, 4)}); },
              ThrowsMessage<UsageError>(HasSubstr("capture() was given a pool that is asleep")));
  pool.resume();
  for (std::uint64_t i = 8; i < 11; ++i) {
    expect_as_eager(i, 4);
    expect_as_eager(i, 8);
  }
}

}  // namespace
}  // namespace pianola::iteration_memory_test
