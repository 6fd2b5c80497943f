// Static inputs that graphs of one function share.
#include <pianola/callable/input_buffers.hpp>
#include <pianola/callable/testing/graphed_fixture.hpp>
#include <pianola/memory/block.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace pianola::shared_inputs_test {
namespace {

using callable::InputBuffers;
using callable::sizes_of_inputs;
using memory::in_whole_units;
using testing::expect_same;
using testing::FusedAdam;
using testing::MlpNet;
using testing::same;

constexpr std::uint64_t kRow = 12 * sizeof(float);

class SharedInputsTest : public testing::GraphedTest {
 protected:
  // A shorter one lies where the longer one does.
  static bool begin_alike(const at::Tensor& one, const at::Tensor& other) { return one.data_ptr() == other.data_ptr(); }

  using Lengths = std::vector<std::int64_t>;
  // Calls of each length in each round. `order` of the lengths in a round.
  static void call_in_turn(const std::function<void(std::int64_t rows, std::uint64_t call)>& call, std::uint64_t rounds,
                           const std::function<Lengths(std::uint64_t round)>& order) {
    std::uint64_t calls = 0;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      for (const std::int64_t rows : order(round)) call(rows, calls++);
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(SharedInputsTest);

TEST_P(SharedInputsTest, AShorterInputIsThePrefixOfALongerOne) {
  InputBuffers buffers;
  const at::Tensor longer = batch(1, 16), shorter = batch(2, 3);
  const at::Tensor first = buffers.static_copy_of(0, longer);
  EXPECT_TRUE(same(first, longer));
  const at::Tensor second = buffers.static_copy_of(0, shorter);
  EXPECT_TRUE(same(second, shorter));
  EXPECT_TRUE(begin_alike(first, second));
  EXPECT_TRUE(same(first.narrow(0, 0, 3), shorter)) << "the same bytes";
  EXPECT_FALSE(second.is_view());
  const at::Tensor all[] = {first, second};
  EXPECT_EQ(callable::bytes_of_memory(all), in_whole_units(16 * kRow));
}

TEST_P(SharedInputsTest, WritesToOneAreNoWritesToAnother) {
  InputBuffers buffers;
  const at::Tensor first = buffers.static_copy_of(0, batch(1)), second = buffers.static_copy_of(0, batch(2));
  const std::int64_t before = first._version();
  second.add_(1);
  EXPECT_EQ(first._version(), before);
}

TEST_P(SharedInputsTest, OtherPositionsAndOtherDtypesLieElsewhere) {
  InputBuffers buffers;
  const at::Tensor first = buffers.static_copy_of(0, batch(1));
  EXPECT_FALSE(begin_alike(first, buffers.static_copy_of(1, batch(1))));
  EXPECT_FALSE(begin_alike(first, buffers.static_copy_of(0, batch(1).to(at::kDouble))));
}

TEST_P(SharedInputsTest, WhatHasGapsOrRepeatsOrIsEmptyHasMemoryOfItsOwn) {
  InputBuffers buffers;
  const at::Tensor sound = buffers.static_copy_of(0, batch(1));
  const at::Tensor gaps = batch(2, 8).slice(1, 0, 12, 2), repeats = batch(3, 1).expand({4, 12});
  for (const at::Tensor& sample : {gaps, repeats, batch(4, 0)}) {
    const at::Tensor copy = buffers.static_copy_of(0, sample);
    EXPECT_TRUE(same(copy, sample));
    EXPECT_EQ(copy.strides(), sample.strides());
    EXPECT_FALSE(copy.is_alias_of(sound));
  }
  EXPECT_EQ(sizes_of_inputs({&gaps, 1}).front().bytes, 0U);
}

TEST_P(SharedInputsTest, ALayoutThatIsDenseIsKept) {
  InputBuffers buffers;
  const at::Tensor plain = buffers.static_copy_of(0, randn({2, 3, 4, 4}, 1));
  const at::Tensor channels_last = randn({2, 3, 4, 4}, 2).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor copy = buffers.static_copy_of(0, channels_last);
  EXPECT_TRUE(same(copy, channels_last));
  EXPECT_EQ(copy.strides(), channels_last.strides());
  EXPECT_TRUE(begin_alike(copy, plain));
}

TEST_P(SharedInputsTest, ABufferGrowsBesideTheOldOneAndGoesWithItsTensors) {
  InputBuffers buffers;
  at::Tensor small = buffers.static_copy_of(0, batch(1, 3));
  at::Tensor large = buffers.static_copy_of(0, batch(2, 16));
  EXPECT_TRUE(same(small, batch(1, 3))) << "graphs that read it go on";
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory = large.storage().getWeakStorageImpl();
  EXPECT_TRUE(begin_alike(buffers.static_copy_of(0, batch(3, 5)), large));
  large.reset();
  EXPECT_TRUE(memory.expired());
}

TEST_P(SharedInputsTest, RoomIsMadeForWhatIsExpected) {
  InputBuffers buffers;
  const at::Tensor longest = batch(1, 16);
  std::optional<InputBuffers::Expectation> expectation(std::in_place, buffers);
  expectation->add(sizes_of_inputs({&longest, 1}));
  const at::Tensor first = buffers.static_copy_of(0, batch(2, 3));
  expectation.reset();
  EXPECT_EQ(first.storage().nbytes(), in_whole_units(16 * kRow));
  EXPECT_TRUE(begin_alike(first, buffers.static_copy_of(0, longest)));
}

TEST_P(SharedInputsTest, InferenceInAnyOrderEqualsEagerAndTakesTheLargestInput) {
  const auto ascending = [](std::uint64_t) { return Lengths{1, 3, 8, 16}; };
  const auto descending = [](std::uint64_t) { return Lengths{16, 8, 3, 1}; };
  const auto shuffled = [](std::uint64_t round) {
    Lengths lengths{1, 3, 8, 16};
    std::shuffle(lengths.begin(), lengths.end(), std::mt19937(round));
    return lengths;
  };
  const auto net = make_net<MlpNet>();
  const at::NoGradGuard no_grad;
  for (const std::function<Lengths(std::uint64_t)>& order :
       {std::function<Lengths(std::uint64_t)>(ascending), std::function<Lengths(std::uint64_t)>(descending),
        std::function<Lengths(std::uint64_t)>(shuffled)}) {
    Graphed graphed = pianola::graphed(net, logged());
    call_in_turn(
        [&](std::int64_t rows, std::uint64_t call) {
          const at::Tensor x = batch(call, rows);
          EXPECT_TRUE(same(graphed(x), net->forward(x))) << call;
        },
        8, order);
    EXPECT_EQ(replays(graphed), 4U * (8 - 3));
    EXPECT_EQ(graphed.info().input_bytes, in_whole_units(16 * kRow));
  }
}

TEST_P(SharedInputsTest, SignaturesThatComeLaterAndAreLargerHaveBuffersOfTheirOwn) {
  const auto net = make_net<MlpNet>();
  const at::NoGradGuard no_grad;
  const auto bytes_after = [&](const Lengths& lengths) {
    Graphed graphed = pianola::graphed(net, logged());
    const auto call = [&](std::int64_t rows, std::uint64_t number) {
      const at::Tensor x = batch(number, rows);
      EXPECT_TRUE(same(graphed(x), net->forward(x))) << rows;
    };
    for (const std::int64_t rows : lengths) {
      for (std::uint64_t i = 0; i < 5; ++i) call(rows, i);
    }
    call_in_turn(call, 2, [&](std::uint64_t) { return lengths; });
    return graphed.info().input_bytes;
  };
  EXPECT_EQ(bytes_after({64, 32, 16}), in_whole_units(64 * kRow));
  EXPECT_EQ(bytes_after({16, 32, 64}),
            in_whole_units(16 * kRow) + in_whole_units(32 * kRow) + in_whole_units(64 * kRow));
}

TEST_P(SharedInputsTest, StepsOfSeveralLengthsEqualEagerAndTakeTheLargestInput) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  FusedAdam eager_adam(eager->parameters()), adam(net->parameters());
  const auto step_of = [](MlpNet& module, FusedAdam& optimizer, const at::Tensor& x) {
    module.zero_grad();
    const at::Tensor loss = square(module.forward(x));
    loss.backward();
    optimizer.step();
    return loss.detach();
  };
  Graphed graphed = pianola::graphed([&](const at::Tensor& x) { return step_of(*net, adam, x); }, logged());
  call_in_turn(
      [&](std::int64_t rows, std::uint64_t call) {
        const at::Tensor x = batch(call, rows);
        EXPECT_TRUE(same(graphed(x), step_of(*eager, eager_adam, x))) << call;
        expect_same_state(*net, *eager, "in call " + std::to_string(call));
      },
      8,
      [](std::uint64_t round) {
        Lengths lengths{2, 7, 13};
        std::shuffle(lengths.begin(), lengths.end(), std::mt19937(round));
        return lengths;
      });
  EXPECT_EQ(latest(graphed).kind, GraphedKind::step);
  EXPECT_GT(replays(graphed), 0U) << latest(graphed).reason;
  EXPECT_EQ(graphed.info().input_bytes, in_whole_units(13 * kRow));
}

// It is the caller's tensor that comes back, which no other call writes.
TEST_P(SharedInputsTest, AResultThatIsAViewOfTheInputOutlivesOtherCalls) {
  const auto function = [](const at::Tensor& x) { return std::vector<at::Tensor>{x * 2, x.t()}; };
  Graphed graphed = pianola::graphed(function, logged());
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 8; ++call) {
    const at::Tensor longer = batch(2 * call, 16), shorter = batch(2 * call + 1, 5);
    const std::vector<at::Tensor> of_longer = graphed.call({&longer, 1});
    const std::vector<at::Tensor> of_shorter = graphed.call({&shorter, 1});
    EXPECT_TRUE(same(of_longer[0], batch(2 * call, 16) * 2)) << call;
    EXPECT_TRUE(same(of_longer[1], batch(2 * call, 16).t())) << call;
    EXPECT_TRUE(of_longer[1].is_alias_of(longer));
    EXPECT_TRUE(same(of_shorter[1], batch(2 * call + 1, 5).t())) << call;
  }
  EXPECT_EQ(replays(graphed), 2U * (8 - 3));
  EXPECT_EQ(graphed.info().input_bytes, in_whole_units(16 * kRow));
}

TEST_P(SharedInputsTest, ABackwardPassAfterAnotherForwardFindsItsInput) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged());
  for (std::uint64_t call = 0; call < 8; ++call) {
    for (const auto& one : {eager, net}) one->zero_grad();
    const auto train = [&](auto&& forward) {
      const at::Tensor longer = batch(2 * call, 8), shorter = batch(2 * call + 1, 5);
      const at::Tensor first = forward(longer), second = forward(shorter);
      square(first).backward();
      square(second).backward();
    };
    train([&](const at::Tensor& x) { return eager->forward(x); });
    train([&](const at::Tensor& x) { return graphed(x); });
    expect_same_state(*net, *eager, "in call " + std::to_string(call));
  }
  EXPECT_EQ(latest(graphed).kind, GraphedKind::autograd);
  EXPECT_GT(replays(graphed), 0U) << latest(graphed).reason;
  EXPECT_EQ(graphed.info().input_bytes, (8 + 5) * kRow) << "each has its own";
}

// A graph that captured it in shared memory would see the next call write into `p.grad`.
TEST_P(SharedInputsTest, AGradientThatLiesInAnInputOutlivesOtherCalls) {
  const auto function_on = [](const at::Tensor& weight) {
    return [weight](const at::Tensor& x) {
      if (x.size(0) != weight.size(0)) return (x * 2).sum();
      weight.mutable_grad().reset();
      (weight * weight).sum().backward();
      weight.mutable_grad() = x.variable_data();
      return (x * 3).sum();
    };
  };
  const at::Tensor weight = randn({5, 12}, 99).requires_grad_(), eager_weight = randn({5, 12}, 99).requires_grad_();
  Graphed graphed = pianola::graphed(function_on(weight), logged());
  const auto eager = function_on(eager_weight);
  for (std::uint64_t call = 0; call < 10; ++call) {
    for (const std::int64_t rows : {16, 5, 8}) {
      const at::Tensor x = batch(call, rows);
      EXPECT_TRUE(same(graphed(x), eager(x.clone()))) << call;
      ASSERT_EQ(weight.grad().defined(), eager_weight.grad().defined());
      if (!weight.grad().defined()) continue;
      EXPECT_TRUE(same(weight.grad(), eager_weight.grad())) << call << ", " << rows;
    }
  }
}

// No backward pass runs in it: it is no step.
TEST_P(SharedInputsTest, AGradientThatAFunctionWithoutBackwardLeavesInAnInputOutlivesOtherCalls) {
  const at::Tensor weight = randn({5, 12}, 99).requires_grad_();
  const auto function = [weight](const at::Tensor& x) {
    if (x.size(0) == weight.size(0)) weight.mutable_grad() = x.variable_data();
    return (weight * 2).sum() + x.sum();
  };
  Graphed graphed = pianola::graphed(function, logged());
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 10; ++call) {
    for (const std::int64_t rows : {16, 5, 8}) {
      const at::Tensor x = batch(call, rows);
      EXPECT_TRUE(same(graphed(x), (weight * 2).sum() + x.sum())) << call;
      if (rows != 16 || call != 0) {
        EXPECT_TRUE(same(weight.grad(), batch(rows == 16 ? call - 1 : call, 5))) << call << ", " << rows;
      }
    }
  }
  EXPECT_EQ(latest(graphed).kind, GraphedKind::inference);
  EXPECT_EQ(replays(graphed), 2U * (10 - 3) + (10 - 4)) << "one is captured twice";
  EXPECT_EQ(graphed.info().input_bytes, in_whole_units(16 * kRow) + 5 * kRow) << "that has its own";
}

}  // namespace
}  // namespace pianola::shared_inputs_test
