#include <pianola/training/static_inputs.hpp>

#include <pianola/graph/testing/mlp.hpp>
#include <pianola/training/testing/static_inputs_fixture.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pianola::static_inputs_test {
namespace {

using c10::IValue;
using testing::AdamW;
using testing::Mlp;
using testing::same;

static_assert(std::is_nothrow_move_constructible_v<StaticInputs> && !std::is_copy_constructible_v<StaticInputs>);

class StaticInputsTest : public testing::StaticInputsFixture {
 protected:
  // Two microbatches of a dict with a tensor of each kind.
  static Batch batch(std::uint64_t number) {
    Batch result;
    for (std::uint64_t i = 0; i < 2; ++i) {
      const std::uint64_t seed = 10 * number + 2 * i;
      result.push_back(dict({{"tokens", numbers({4, 7}, seed)}, {"weights", floats({4}, seed + 1)}}));
    }
    return result;
  }
  static std::vector<at::Tensor> tensors_of(const Batch& batch) {
    std::vector<at::Tensor> result;
    for (const IValue& microbatch : batch) {
      result.push_back(at_key(microbatch, "tokens"));
      result.push_back(at_key(microbatch, "weights"));
    }
    return result;
  }
};
PIANOLA_ON_EVERY_DEVICE(StaticInputsTest);

TEST_P(StaticInputsTest, KeepTheNestingAroundTensorsOfTheirOwn) {
  const at::Tensor a = floats({2, 3}, 1), b = numbers({5}, 2), c = floats({}, 3), d = floats({2}, 4);
  StaticInputs inputs(device());
  inputs.load({dict({{"a", a}, {"rest", tuple({b, IValue(), 3, "text", list({c, 2.5})})}}), d});
  const std::vector<IValue>& microbatches = inputs.microbatches();
  ASSERT_EQ(microbatches.size(), 2U);
  const auto rest = microbatches[0].toGenericDict().at("rest").toTupleRef().elements().vec();
  EXPECT_TRUE(rest[1].isNone());
  EXPECT_EQ(rest[2].toInt(), 3);
  EXPECT_EQ(rest[3].toStringRef(), "text");
  EXPECT_EQ(rest[4].toListRef()[1].toDouble(), 2.5);
  expect_values(
      {at_key(microbatches[0], "a"), rest[0].toTensor(), rest[4].toListRef()[0].toTensor(), microbatches[1].toTensor()},
      {a, b, c, d});
  expect_values(inputs.tensors(), {a, b, c, d});
  for (const at::Tensor& tensor : inputs.tensors()) EXPECT_EQ(tensor.device(), device());
}

// Older than the driver, whose own end comes first.
std::optional<StaticInputs> inputs_of_the_program;

TEST_P(StaticInputsTest, MayBeStaticWhenTheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        inputs_of_the_program.emplace(device());
        for (std::uint64_t number = 0; number < 3; ++number) inputs_of_the_program->load(batch(number));
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(StaticInputsTest, StayAtTheirAddressesWhateverIsLoaded) {
  StaticInputs inputs(device());
  inputs.load(batch(0));
  const std::vector<at::Tensor> first = inputs.tensors();
  for (std::uint64_t number = 1; number < 6; ++number) {
    inputs.load(batch(number));
    expect_values(inputs.tensors(), tensors_of(batch(number)), "of batch " + std::to_string(number));
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(inputs.tensors()[i].is_same(first[i]));
      EXPECT_TRUE(tensors_of(inputs.microbatches())[i].is_same(first[i]));
    }
  }
}

TEST_P(StaticInputsTest, KeepTheCurrentBatchWhileTheNextOneTravels) {
  for (const bool double_buffer : {true, false}) {
    for (const bool pin : {true, false}) {
      StaticInputs inputs(device(), {.pin = pin, .double_buffer = double_buffer});
      inputs.load(batch(0));
      for (std::uint64_t number = 1; number < 6; ++number) {
        inputs.prefetch(batch(number));
        expect_values(inputs.tensors(), tensors_of(batch(number - 1)), "after prefetch " + std::to_string(number));
        inputs.advance();
        expect_values(inputs.tensors(), tensors_of(batch(number)), "after advance " + std::to_string(number));
      }
    }
  }
}

// So that a loader may fill the same host memory again.
TEST_P(StaticInputsTest, ReadOrdinaryHostMemoryWhenItIsPrefetched) {
  StaticInputs inputs(device());
  inputs.load(batch(0));
  const Batch next = batch(1);
  inputs.prefetch(next);
  for (const at::Tensor& tensor : tensors_of(next)) tensor.fill_(0);
  inputs.advance();
  expect_values(inputs.tensors(), tensors_of(batch(1)));
}

TEST_P(StaticInputsTest, TakeBatchesThatArePinnedOrOnTheDevice) {
  for (const bool double_buffer : {true, false}) {
    StaticInputs inputs(device(), {.double_buffer = double_buffer});
    inputs.load({floats({300}, 1), floats({300}, 2), floats({300}, 3)});
    for (std::uint64_t number = 1; number < 5; ++number) {
      const std::vector<at::Tensor> values = {floats({300}, 4 * number), floats({300}, 4 * number + 1),
                                              floats({300}, 4 * number + 2)};
      inputs.prefetch({on_cuda() ? values[0].pin_memory() : values[0], values[1].to(device()), values[2]});
      inputs.advance();
      expect_values(inputs.tensors(), values);
    }
  }
}

TEST_P(StaticInputsTest, CopyWhatLiesInAnotherWay) {
  StaticInputs inputs(device());
  inputs.load({floats({3, 4}, 1), floats({3, 4}, 2), floats({3, 4}, 3)});
  const at::Tensor transposed = floats({4, 3}, 4).t(), every_second = floats({6, 4}, 5).slice(0, 0, 6, 2);
  const at::Tensor expanded = floats({1, 4}, 6).expand({3, 4});
  inputs.load({transposed, every_second, expanded});
  expect_values(inputs.tensors(), {transposed, every_second, expanded});
  inputs.load({transposed.to(device()), every_second.to(device()), floats({1, 4}, 6).to(device()).expand({3, 4})});
  expect_values(inputs.tensors(), {transposed, every_second, expanded});
}

// Strides decide which kernels run, and so which bits come out.
TEST_P(StaticInputsTest, LieAsTheFirstBatchDoes) {
  StaticInputs inputs(device());
  const at::Tensor images = floats({2, 3, 4, 5}, 1).contiguous(at::MemoryFormat::ChannelsLast);
  inputs.load({tuple({images, floats({4, 3}, 2).t(), floats({1, 4}, 3).expand({3, 4})})});
  EXPECT_EQ(inputs.tensors()[0].strides(), images.strides());
  EXPECT_EQ(inputs.tensors()[1].strides(), at::IntArrayRef({1, 3}));
  EXPECT_EQ(inputs.tensors()[2].strides(), at::IntArrayRef({4, 1})) << "repeated elements become elements of their own";
}

TEST_P(StaticInputsTest, CarryEveryDtypeAndSize) {
  const at::Tensor values = floats({3, 5}, 1) * 10;
  const std::vector<at::Tensor> all = {values.to(at::kBool),          values.to(at::kChar),  values.abs().to(at::kByte),
                                       values.to(at::kHalf),          values.to(at::kShort), values.to(at::kBFloat16),
                                       values.to(at::kComplexDouble), values[0][0],          at::empty({0, 4}),
                                       values.to(at::kDouble)};
  StaticInputs inputs(device());
  inputs.load({list({all.begin(), all.end()})});
  expect_values(inputs.tensors(), all);
}

TEST_P(StaticInputsTest, LeaveAloneWhatTheCallerWroteIntoThem) {
  StaticInputs inputs(device());
  inputs.load(batch(0));
  const at::Tensor weights = inputs.tensors()[1];
  const Batch next = {dict({{"tokens", numbers({4, 7}, 50)}, {"weights", weights}}), batch(1)[1]};
  inputs.prefetch(next);
  weights.fill_(7);
  inputs.advance();
  expect_values(inputs.tensors(),
                {numbers({4, 7}, 50), at::full({4}, 7.0), tensors_of(batch(1))[2], tensors_of(batch(1))[3]});
}

TEST_P(StaticInputsTest, ReadSourcesThatAreOtherStaticTensorsFirst) {
  StaticInputs inputs(device());
  inputs.load({floats({4}, 1), floats({4}, 2)});
  inputs.load({inputs.tensors()[1], inputs.tensors()[0]});
  expect_values(inputs.tensors(), {floats({4}, 2), floats({4}, 1)});
}

TEST_P(StaticInputsTest, DoNotJoinTheHistoryOfTheirSources) {
  StaticInputs inputs(device());
  const at::Tensor source = floats({4}, 1).requires_grad_() * 2;
  inputs.load({source});
  EXPECT_FALSE(inputs.tensors()[0].requires_grad());
  expect_values(inputs.tensors(), {source.detach()});
}

TEST_P(StaticInputsTest, MayBeLoadedInInferenceModeFirst) {
  StaticInputs inputs(device());
  {
    const c10::InferenceMode inference;
    inputs.load({floats({4}, 1)});
  }
  EXPECT_FALSE(inputs.tensors()[0].is_inference());
  inputs.load({floats({4}, 2)});
  expect_values(inputs.tensors(), {floats({4}, 2)});
}

TEST_P(StaticInputsTest, LetAutogradRefuseABackwardThroughABatchThatIsGone) {
  StaticInputs inputs(device());
  inputs.load({floats({4}, 1)});
  const at::Tensor weight = at::ones({4}, device()).requires_grad_();
  const at::Tensor loss = (weight * inputs.tensors()[0]).sum();
  inputs.load({floats({4}, 2)});
  EXPECT_THAT([&] { loss.backward(); },
              ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("modified by an inplace operation")));
}

TEST_P(StaticInputsTest, MayBeMovedAndDestroyedWhileABatchTravels) {
  StaticInputs inputs(device());
  inputs.load(batch(0));
  inputs.prefetch(batch(1));
  StaticInputs moved = std::move(inputs);
  moved.advance();
  const std::vector<at::Tensor> kept = moved.tensors();
  moved.prefetch(batch(2));
  moved = StaticInputs(device());
  expect_values(kept, tensors_of(batch(1)));
}

// As Python's garbage collector does, at whatever moment it comes by.
TEST_P(StaticInputsTest, MayBeDestroyedInACapture) {
  auto inputs = std::make_unique<StaticInputs>(device());
  for (std::uint64_t i = 0; i < 3; ++i) inputs->load(batch(i));
  inputs->prefetch(batch(3));
  const at::Tensor count = at::ones({2}, device());
  Graph graph(device());
  graph.capture(
      [&] {
        inputs.reset();
        count.add_(1);
      },
      {.warmup = 0});
  graph.replay();
  EXPECT_TRUE(same(count, at::ones({2}, device()) * 2));
}

TEST_P(StaticInputsTest, CountTheirMemory) {
  for (const bool double_buffer : {true, false}) {
    StaticInputs inputs(device(), {.double_buffer = double_buffer});
    EXPECT_EQ(inputs.bytes(), 0U);
    inputs.load({floats({128}, 1), floats({256}, 2)});
    EXPECT_EQ(inputs.bytes(), on_cuda() && double_buffer ? 3072U : 1536U);
  }
}

TEST_P(StaticInputsTest, TellWhatTheyHold) {
  StaticInputs inputs(device());
  EXPECT_THAT(inputs.report().to_json(-1), ::testing::HasSubstr(R"("tensors":0)"));
  inputs.load({floats({128}, 1), floats({256}, 2)});
  inputs.load({floats({128}, 3), floats({256}, 4)});
  EXPECT_THAT(inputs.report().to_text(), ::testing::AllOf(::testing::HasSubstr("static tensors  1.5 KiB"),
                                                          ::testing::HasSubstr("microbatches    2")));
  EXPECT_THAT(inputs.report().to_json(-1), ::testing::HasSubstr(R"("batches":2,"elements":0,"padding":0)"));
}

// A step over two microbatches, with its gradients accumulated, and AdamW.
struct AccumulatingStep {
  explicit AccumulatingStep(c10::Device device) : model(device, 2, 3), optimizer(model.parameters) {}

  void run(const std::vector<IValue>& microbatches) {
    for (at::Tensor& parameter : model.parameters) parameter.mutable_grad().reset();
    losses.clear();
    for (const IValue& microbatch : microbatches) {
      const auto pair = microbatch.toTupleRef().elements().vec();
      losses.push_back(at::mse_loss(model(pair[0].toTensor()), pair[1].toTensor()));
      losses.back().backward();
    }
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : model.parameters) gradients.push_back(parameter.grad());
    optimizer.step(model.parameters, gradients);
  }

  Mlp model;
  AdamW optimizer;
  std::vector<at::Tensor> losses;
};

TEST_P(StaticInputsTest, FeedACapturedStepThatEqualsEager) {
  const auto batch_of = [](std::uint64_t number) {
    const auto part = [&](std::uint64_t i) { return floats({8, Mlp::kWidth}, 4 * number + i); };
    return Batch{tuple({part(0), part(1)}), tuple({part(2), part(3)})};
  };
  const auto on_device = [](const Batch& batch) {
    Batch result;
    for (const IValue& microbatch : batch) {
      const auto pair = microbatch.toTupleRef().elements().vec();
      result.push_back(tuple({pair[0].toTensor().to(device()), pair[1].toTensor().to(device())}));
    }
    return result;
  };
  AccumulatingStep eager(device()), graphed(device());
  StaticInputs inputs(device());
  inputs.load(batch_of(0));
  Graph graph(device());
  graph.capture([&] { graphed.run(inputs.microbatches()); });
  for (std::uint64_t number = 0; number < 6; ++number) {
    graph.replay();
    if (number < 5) inputs.prefetch(batch_of(number + 1));
    eager.run(on_device(batch_of(number)));
    expect_values(graphed.losses, eager.losses, "in step " + std::to_string(number));
    expect_values(graphed.model.parameters, eager.model.parameters, "in step " + std::to_string(number));
    if (number < 5) inputs.advance();
  }
}

}  // namespace
}  // namespace pianola::static_inputs_test
