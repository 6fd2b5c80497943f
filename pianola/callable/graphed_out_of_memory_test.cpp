#include <pianola/callable/graphed.hpp>

#include <pianola/callable/testing/twins.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/testing/failing_memory.hpp>

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pianola::graphed_out_of_memory_test {
namespace {

using testing::expect_same;
using testing::FailingMemory;
using testing::same;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(12, 16));
    second = register_module("second", torch::nn::Linear(16, 12));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::dropout(torch::relu(first(x)), 0.1, is_training())); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

at::Tensor step_of(Net& net, const at::Tensor& x) {
  net.zero_grad();
  const at::Tensor loss = net.forward(x).square().mean();
  loss.backward();
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : net.parameters()) parameter.sub_(parameter.grad(), 0.1);
  return loss.detach().clone();
}

testing::NamedTensors weights_of(const Net& net) {
  testing::NamedTensors state;
  for (const auto& parameter : net.named_parameters()) {
    state.emplace_back(parameter.key(), parameter.value().detach());
    state.emplace_back("gradient of " + parameter.key(), parameter.value().grad());
  }
  return state;
}

class GraphedOutOfMemoryTest : public testing::CallableTest {
 protected:
  void SetUp() override {
    CallableTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    PIANOLA_SKIP_WHERE_NO_ALLOCATION_CAN_FAIL();
    memory.emplace(device());
  }

  static at::Tensor batch(std::uint64_t call) {
    seed(100 + call);  // of the dropout
    return randn({8, 12}, 100 + call);
  }

  // What a call came to of which one allocation failed.
  enum class Outcome { nothing_failed, as_eager, in_replay };

  // A capture that fails leaves the call to eager, or throws and has done nothing: called once more, it is eager's. So it is where there
  // is no memory for the copy of a result. On the tape the operations of a replay ask for scratch as eager's do, and those before the
  // one that gets none have done their work.
  Outcome outcome_of_failure(int number) {
    const auto net = make_net<Net>(), eager = make_net<Net>();
    GraphedOptions options;
    options.on_fallback = [](const std::string& /*reason*/) {};
    Graphed graphed = pianola::graphed([net](const at::Tensor& x) { return step_of(*net, x); }, options);
    bool failed = false;
    for (std::uint64_t call = 0; call < kCaptured + 4; ++call) {
      const at::Tensor expected = step_of(*eager, batch(call));
      const at::Tensor x = batch(call);
      if (call == kCaptured) memory->fail_at(number);
      at::Tensor loss;
      try {
        loss = graphed(x);
      } catch (const c10::OutOfMemoryError& error) {
        if (std::string(error.what()).find("in a replay: ") != std::string::npos) return Outcome::in_replay;
      } catch (const OutOfMemoryError&) {
      }
      failed = memory->fail_at(0) || failed;
      if (!loss.defined()) loss = graphed(batch(call));  // as a program does that has freed some memory
      expect_same({{"loss", loss}}, {{"loss", expected}}, "in call " + std::to_string(call));
      expect_same(weights_of(*net), weights_of(*eager), "after call " + std::to_string(call));
    }
    return failed ? Outcome::as_eager : Outcome::nothing_failed;
  }

  static constexpr std::uint64_t kCaptured = 3;  // this call, from 0, is

  std::optional<FailingMemory> memory;
};
PIANOLA_ON_EVERY_DEVICE(GraphedOutOfMemoryTest);

TEST_P(GraphedOutOfMemoryTest, AtEachAllocationOfTheCallThatIsCapturedNothingIsLost) {
  int as_eager = 0;
  for (int number = 1; !HasFailure(); ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    const Outcome outcome = outcome_of_failure(number);
    if (outcome == Outcome::nothing_failed) break;
    as_eager += outcome == Outcome::as_eager ? 1 : 0;
  }
  EXPECT_GT(as_eager, on_cuda() ? 15 : 50);
}

// Its results are copied to the caller: one as it lies, one that is part of another tensor.
TEST_P(GraphedOutOfMemoryTest, ACallWhoseResultsFindNoMemoryHasDoneNothing) {
  const at::Tensor weight = at::ones({8, 8}, device());
  Graphed graphed = pianola::graphed([&](const at::Tensor& x) -> std::vector<at::Tensor> {
    weight.add_(x);
    weight.bernoulli_(0.5);
    return {weight * 2, (weight + 1).narrow(1, 0, 3)};
  });
  const at::Tensor x = at::ones({8, 8}, device());
  for (int call = 0; call < 6; ++call) (void)graphed.forward({x});
  ASSERT_EQ(graphed.info().signatures.at(0).replays, 3U);
  const at::Tensor before = weight.clone(), state = state_of(generator());
  for (const int number : {1, 2}) {
    memory->fail_at(number);
    try {
      (void)graphed.forward({x});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::OutOfMemoryError& error) {
      EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("in a replay: "))) << "it had begun";
    }
    memory->fail_at(0);
    EXPECT_TRUE(same(weight, before));
    EXPECT_TRUE(same(state_of(generator()), state));
  }
  const std::vector<at::Tensor> results = graphed.forward({x}).toTensorVector();
  EXPECT_TRUE(results[0].equal(weight * 2));
  EXPECT_TRUE(results[1].equal((weight + 1).narrow(1, 0, 3)));
  EXPECT_EQ(results[0]._version(), 0U);
  EXPECT_TRUE(results[1].is_contiguous());
}

}  // namespace
}  // namespace pianola::graphed_out_of_memory_test
