// See Note [Tensors that are given memory of a run].
#include <pianola/callable/given_memory.hpp>
#include <pianola/callable/testing/graphed_fixture.hpp>

#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pianola::given_memory_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::same;
using ::testing::SizeIs;

class GivenMemoryTest : public testing::GraphedTest {
 protected:
  struct Way {
    const char* name;
    const char* memory;
    std::function<at::Tensor(const at::Tensor& x)> data;
  };
  // What a call gives the tensor.
  static std::vector<Way> ways() {
    return {{"an input", "the memory of input 0", [](const at::Tensor& x) { return x.variable_data(); }},
            {"a view of it", "the memory of input 0", [](const at::Tensor& x) { return x.slice(0, 1, 3); }},
            {"what was made", "memory that it made", [](const at::Tensor& x) { return x * 2; }}};
  }

  // Calls of two lengths in turn: the tensor has what its own call gave it, also after calls of the other length.
  void expect_given_as_in_eager(Graphed& graphed, const at::Tensor& tensor, const Way& way,
                                const std::function<void(const at::Tensor& loss)>& after) {
    for (std::uint64_t call = 0; call < 8; ++call) {
      for (const std::int64_t rows : {8, 5}) {
        const at::Tensor x = batch(call, rows);
        after(graphed(x));
        EXPECT_TRUE(same(tensor.detach(), way.data(x))) << way.name << ", call " << call << ", rows " << rows;
      }
    }
    EXPECT_EQ(replays(graphed), 0U) << way.name;
  }
};
PIANOLA_ON_EVERY_DEVICE(GivenMemoryTest);

// The graph is retained, so that the history of the loss holds what was saved.
TEST_P(GivenMemoryTest, AParameterThatAStepGivesItsMemoryKeepsTheStepEager) {
  for (const Way& way : ways()) {
    const at::Tensor weight = randn({12}, 7);
    at::Tensor parameter = randn({8, 12}, 9).requires_grad_();
    Graphed graphed = pianola::graphed(
        [&](const at::Tensor& x) {
          parameter.mutable_grad().reset();
          parameter.set_data(way.data(x));
          at::Tensor loss = square(parameter * weight);
          loss.backward({}, /*retain_graph=*/true);
          return loss;
        },
        logged());
    expect_given_as_in_eager(graphed, parameter, way, [](const at::Tensor& /*loss*/) {});
    EXPECT_THAT(reasons, AllOf(SizeIs(2U), Each(AllOf(HasSubstr("the function gives a Float parameter of shape"),
                                                      HasSubstr("which outlives the call"), HasSubstr(way.memory),
                                                      HasSubstr("would overwrite what it has"), HasSubstr("PG802"),
                                                      HasSubstr("tensor.copy_(new) under no_grad()")))))
        << way.name;
    reasons.clear();
  }
}

TEST_P(GivenMemoryTest, ABufferThatAFunctionGivesItsMemoryKeepsTheFunctionEager) {
  for (const Way& way : ways()) {
    const at::Tensor weight = randn({12}, 7).requires_grad_();
    const at::Tensor buffer = randn({8, 12}, 9);
    Graphed graphed = pianola::graphed(
        [&](const at::Tensor& x) {
          buffer.set_data(way.data(x));
          return square(x * weight) + buffer.sum();
        },
        logged());
    expect_given_as_in_eager(graphed, buffer, way, [](const at::Tensor& loss) { loss.backward(); });
    EXPECT_THAT(reasons, AllOf(SizeIs(2U), Each(HasSubstr("PG802")))) << way.name;
    reasons.clear();
  }
}

// As FSDP does around each use of a parameter.
TEST_P(GivenMemoryTest, ABufferThatGetsItsOwnMemoryBackIsNothingToTell) {
  const at::Tensor buffer = randn({12}, 9);
  const auto function = [&](const at::Tensor& x) {
    const at::Tensor own = buffer.variable_data();
    buffer.set_data(own * 2);
    const at::Tensor result = x + buffer;
    buffer.set_data(own);
    return result;
  };
  Graphed graphed = pianola::graphed(function, logged());
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 8; ++call) {
    EXPECT_TRUE(same(graphed(batch(call)), function(batch(call)))) << call;
    buffer.add_(1);
  }
  EXPECT_THAT(reasons, IsEmpty());
  EXPECT_GT(replays(graphed), 0U);
}

// An average that is written in place, and gradients that are new tensors each time.
TEST_P(GivenMemoryTest, WhatIsWrittenInPlaceOrReplacedByTorchIsNothingToTell) {
  at::Tensor weight = randn({12}, 7).requires_grad_();
  const at::Tensor average = weight.detach().clone();
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        weight.mutable_grad().reset();
        at::Tensor loss = square(x * weight);
        loss.backward({}, /*retain_graph=*/true);
        const at::NoGradGuard no_grad;
        weight.sub_(weight.grad() * 0.1);
        average.mul_(0.9).add_(weight, 0.1);
        return loss;
      },
      logged());
  for (std::uint64_t call = 0; call < 8; ++call) {
    for (const std::int64_t rows : {8, 5}) (void)graphed(batch(call, rows));
  }
  EXPECT_THAT(reasons, IsEmpty());
  EXPECT_GT(replays(graphed), 0U);
}

}  // namespace
}  // namespace pianola::given_memory_test
