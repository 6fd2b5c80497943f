#include <pianola/callable/graphed.hpp>

#include <pianola/callable/testing/twins.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/trace/testing/failing_allocator.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::graphed_out_of_memory_test {
namespace {

using testing::expect_same;
using testing::FailingAllocator;

struct Net : torch::nn::Module {
  Net() {
    at::Generator(at::globalContext().defaultGenerator(c10::kCPU)).set_current_seed(3);
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

testing::NamedTensors state_of(const Net& net) {
  testing::NamedTensors state;
  for (const auto& parameter : net.named_parameters()) {
    state.emplace_back(parameter.key(), parameter.value().detach());
    state.emplace_back("gradient of " + parameter.key(), parameter.value().grad());
  }
  return state;
}

class GraphedOutOfMemoryTest : public testing::FailingAllocatorTest {
 protected:
  static at::Tensor batch(std::uint64_t call) {
    at::Generator(at::globalContext().defaultGenerator(c10::kCPU)).set_current_seed(100 + call);
    return at::randn({8, 12});
  }

  // What a call came to of which one allocation failed.
  enum class Outcome { nothing_failed, as_eager, behind_capture };

  // A capture that fails leaves the call to eager, or throws and has done nothing: called once more, it is eager's. Its replay is another
  // thing: on the tape its operations ask for scratch as eager's do, and those before the one that gets none have done their work; and
  // the copy of a result is made when all have.
  Outcome outcome_of_failure(int number) {
    const auto net = std::make_shared<Net>(), eager = std::make_shared<Net>();
    GraphedOptions options;
    options.on_fallback = [](const std::string& /*reason*/) {};
    Graphed graphed = pianola::graphed([net](const at::Tensor& x) { return step_of(*net, x); }, options);
    bool failed = false;
    for (std::uint64_t call = 0; call < kCaptured + 4; ++call) {
      const at::Tensor expected = step_of(*eager, batch(call));
      const at::Tensor x = batch(call);
      if (call == kCaptured) allocator.fail_at(number);
      at::Tensor loss;
      try {
        loss = graphed(x);
      } catch (const c10::OutOfMemoryError&) {
        if (graphed.info().signatures.at(0).state == GraphedState::captured) return Outcome::behind_capture;
      } catch (const OutOfMemoryError&) {
      }
      failed = failed || allocator.has_failed();
      allocator.fail_at(0);
      if (!loss.defined()) loss = graphed(batch(call));  // as a program does that has freed some memory
      expect_same({{"loss", loss}}, {{"loss", expected}}, "in call " + std::to_string(call));
      expect_same(state_of(*net), state_of(*eager), "after call " + std::to_string(call));
    }
    return failed ? Outcome::as_eager : Outcome::nothing_failed;
  }

  static constexpr std::uint64_t kCaptured = 3;  // this call, from 0, is
};

TEST_F(GraphedOutOfMemoryTest, AtEachAllocationOfTheCallThatIsCapturedNothingIsLost) {
  int as_eager = 0;
  for (int number = 1; !HasFailure(); ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    const Outcome outcome = outcome_of_failure(number);
    if (outcome == Outcome::nothing_failed) break;
    as_eager += outcome == Outcome::as_eager ? 1 : 0;
  }
  EXPECT_GT(as_eager, 50);
}

}  // namespace
}  // namespace pianola::graphed_out_of_memory_test
