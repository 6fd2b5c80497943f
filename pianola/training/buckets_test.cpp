#include <pianola/training/buckets.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/training/static_inputs.hpp>
#include <pianola/training/testing/static_inputs_fixture.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace pianola::buckets_test {
namespace {

using c10::IValue;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;

// Along dimension 1.
at::Tensor padded(const at::Tensor& tensor, std::int64_t length, const c10::Scalar& value) {
  return at::constant_pad_nd(tensor, {0, length - tensor.size(1)}, value);
}

class BucketsTest : public testing::StaticInputsFixture {
 protected:
  static IValue text(std::int64_t length, std::uint64_t seed) {
    return dict({{"tokens", numbers({2, length}, seed)}, {"targets", numbers({2, length}, seed + 1)}});
  }
  static Buckets for_text(std::vector<std::int64_t> sizes) {
    return {.sizes = std::move(sizes), .padding = {{"tokens", 0}, {"targets", -100}}};
  }
};
PIANOLA_ON_EVERY_DEVICE(BucketsTest);

TEST_P(BucketsTest, GiveTheSmallestThatHoldsALength) {
  const Buckets buckets{.sizes = {16, 32, 64}};
  EXPECT_EQ(buckets.bucket_of(0), 16);
  EXPECT_EQ(buckets.bucket_of(16), 16);
  EXPECT_EQ(buckets.bucket_of(17), 32);
  EXPECT_EQ(buckets.bucket_of(64), 64);
}

TEST_P(BucketsTest, PadEachTensorWithItsValue) {
  StaticInputs inputs(device(), {.buckets = for_text({4, 8, 16})});
  for (const std::int64_t length : {5, 3, 16, 8, 1, 4}) {
    const auto seed = static_cast<std::uint64_t>(length);
    inputs.load({text(length, seed), text(1, seed + 50)});
    const std::int64_t bucket = length <= 4 ? 4 : length <= 8 ? 8 : 16;
    EXPECT_EQ(inputs.bucket(), bucket);
    expect_values(inputs.tensors(),
                  {padded(numbers({2, length}, seed), bucket, 0), padded(numbers({2, length}, seed + 1), bucket, -100),
                   padded(numbers({2, 1}, seed + 50), bucket, 0), padded(numbers({2, 1}, seed + 51), bucket, -100)},
                  "at length " + std::to_string(length));
    for (const at::Tensor& tensor : inputs.tensors()) EXPECT_TRUE(tensor.is_contiguous());
  }
}

TEST_P(BucketsTest, PadWhatComesFromTheDeviceOrIsPinned) {
  StaticInputs inputs(device(), {.buckets = {.sizes = {4, 8}, .padding = {{"[0]", -1}, {"[1]", 0.5}}}});
  for (const std::int64_t length : {3, 8, 4, 6}) {
    const auto seed = static_cast<std::uint64_t>(length);
    const at::Tensor on_host = numbers({2, length}, seed), other = floats({2, length, 3}, seed);
    inputs.load({tuple({on_cuda() ? on_host.pin_memory() : on_host, other.to(device())})});
    const std::int64_t tail = inputs.bucket() - length;
    expect_values(inputs.tensors(),
                  {padded(on_host, inputs.bucket(), -1), at::cat({other, at::full({2, tail, 3}, 0.5)}, 1)});
  }
}

TEST_P(BucketsTest, PadAlongSeveralDimensions) {
  const Buckets buckets{.sizes = {4, 6}, .padding = {{"tokens", 9}, {"mask", false, -1}, {"mask", false, -2}}};
  StaticInputs inputs(device(), {.buckets = buckets});
  inputs.load({dict({{"tokens", numbers({2, 3}, 1)}, {"mask", at::ones({2, 3, 3}, at::kBool)}})});
  at::Tensor mask = at::zeros({2, 4, 4}, at::kBool);
  mask.narrow(1, 0, 3).narrow(2, 0, 3).fill_(true);
  expect_values(inputs.tensors(), {padded(numbers({2, 3}, 1), 4, 9), mask});
}

TEST_P(BucketsTest, PadWhatHasTheLengthOfTheFirstTensorWhereNothingIsListed) {
  StaticInputs inputs(device(), {.buckets = {.sizes = {4, 8}, .dim = 1, .value = 3}});
  const auto batch = [](std::int64_t length) {
    return Batch{dict({{"weights", floats({2}, 1)},
                       {"tokens", numbers({2, length}, 2)},
                       {"features", floats({2, 6}, 3)},
                       {"embedded", floats({2, length, 5}, 4)}})};
  };
  for (const std::int64_t length : {3, 7}) {
    inputs.load(batch(length));
    const std::int64_t tail = inputs.bucket() - length;
    expect_values(inputs.tensors(),
                  {floats({2}, 1), padded(numbers({2, length}, 2), inputs.bucket(), 3), floats({2, 6}, 3),
                   at::cat({floats({2, length, 5}, 4), at::full({2, tail, 5}, 3.0)}, 1)});
  }
}

TEST_P(BucketsTest, NameTensorsByKeyByPathOrByPosition) {
  const at::Tensor x = numbers({1, 3}, 1);
  const std::vector<std::pair<IValue, std::string>> cases = {{dict({{"x", x}}), "x"},
                                                             {dict({{"text", dict({{"x", x}})}}), "x"},
                                                             {dict({{"text", dict({{"x", x}})}}), "['text']['x']"},
                                                             {list({x}), "[0]"},
                                                             {x, ""}};
  for (const auto& [microbatch, name] : cases) {
    StaticInputs inputs(device(), {.buckets = {.sizes = {5}, .padding = {{name, 8}}}});
    inputs.load({microbatch});
    expect_values(inputs.tensors(), {padded(x, 5, 8)}, name);
  }
}

TEST_P(BucketsTest, NameTensorsAsTheWrapperDoes) {
  const auto path_of = [](std::size_t, std::size_t tensor) { return tensor == 0 ? ".tokens" : "['x']"; };
  StaticInputs inputs(device(), {.buckets = {.sizes = {5}, .padding = {{"tokens", 8}}}, .path_of = path_of});
  inputs.load({list({numbers({1, 3}, 1), floats({2, 2}, 2)})});
  expect_values(inputs.tensors(), {padded(numbers({1, 3}, 1), 5, 8), floats({2, 2}, 2)});
  EXPECT_THAT(refusal<UsageError>("a wrapper's path",
                                  [&] {
                                    inputs.load({list({numbers({1, 3}, 1), floats({2, 3}, 2)})});
                                  }),
              HasSubstr("microbatch 0['x']: expected Float [2, 2], got Float [2, 3]"));
}

TEST_P(BucketsTest, KeepTheirTensorsInTheMemoryOfTheLargest) {
  StaticInputs inputs(device(), {.double_buffer = false, .buckets = for_text({4, 8, 1024})});
  inputs.load({text(3, 1)});
  EXPECT_EQ(inputs.bytes(), 2U * 2 * 1024 * sizeof(std::int64_t));
  const std::vector<at::Tensor> small = inputs.tensors();
  inputs.load({text(7, 2)});
  EXPECT_FALSE(inputs.tensors()[0].is_same(small[0]));
  inputs.load({text(4, 3)});
  EXPECT_TRUE(inputs.tensors()[0].is_same(small[0]));
  EXPECT_EQ(inputs.bytes(), 2U * 2 * 1024 * sizeof(std::int64_t));
}

TEST_P(BucketsTest, KeepTheBatchWhileOneOfAnotherBucketTravels) {
  StaticInputs inputs(device(), {.buckets = for_text({4, 8})});
  inputs.load({text(3, 1)});
  inputs.prefetch({text(7, 3)});
  EXPECT_EQ(inputs.bucket(), 4);
  expect_values(inputs.tensors(), {padded(numbers({2, 3}, 1), 4, 0), padded(numbers({2, 3}, 2), 4, -100)});
  inputs.advance();
  EXPECT_EQ(inputs.bucket(), 8);
  expect_values(inputs.tensors(), {padded(numbers({2, 7}, 3), 8, 0), padded(numbers({2, 7}, 4), 8, -100)});
}

TEST_P(BucketsTest, ShowTheBatchInEachBucketFromTheLargestOn) {
  StaticInputs inputs(device(), {.buckets = for_text({2, 4, 8})});
  inputs.load({text(3, 1)});
  const auto expect_in = [&](std::int64_t length) {
    EXPECT_EQ(inputs.bucket(), length);
    const auto in_bucket = [&](std::uint64_t seed, int value) {
      const at::Tensor all = padded(numbers({2, 3}, seed), 8, value);
      return all.narrow(1, 0, length);
    };
    expect_values(inputs.tensors(), {in_bucket(1, 0), in_bucket(2, -100)}, "in bucket " + std::to_string(length));
  };
  std::vector<std::int64_t> lengths;
  inputs.for_each_bucket([&](std::int64_t length) {
    lengths.push_back(length);
    expect_in(length);
  });
  EXPECT_THAT(lengths, ElementsAre(8, 4, 2));
  expect_in(4);
  EXPECT_THROW(inputs.for_each_bucket([](std::int64_t) { throw std::runtime_error("mine"); }), std::runtime_error);
  expect_in(4);
}

TEST_P(BucketsTest, CountWhatPaddingWastes) {
  StaticInputs inputs(device(), {.buckets = for_text({4, 8})});
  EXPECT_TRUE(inputs.bucket_uses().empty());
  inputs.load({text(3, 1)});
  inputs.load({text(4, 1)});
  inputs.prefetch({text(6, 1)});
  EXPECT_EQ(inputs.bucket_uses()[1].batches, 0U) << "it counts once it is the current one";
  inputs.advance();
  const std::vector<BucketUse> uses = inputs.bucket_uses();
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(uses[0].length, 4);
  EXPECT_EQ(uses[0].batches, 2U);
  EXPECT_EQ(uses[0].elements, 28U);
  EXPECT_EQ(uses[0].padding, 4U);
  EXPECT_EQ(uses[0].waste_percent(), 12.5);
  EXPECT_EQ(uses[1].waste_percent(), 25.0);
  EXPECT_EQ(BucketUse().waste_percent(), 0.0);
  EXPECT_THAT(inputs.report().to_text(), AllOf(HasSubstr("Buckets"), HasSubstr("12.5"), HasSubstr("25.0")));
  EXPECT_THAT(inputs.report().to_json(-1),
              HasSubstr(R"({"length":4,"batches":2,"elements":28,"padding":4,"waste_percent":12.5})"));
}

// Embedding, linear layer, cross entropy that leaves out -100, and SGD.
struct TextStep {
  explicit TextStep(c10::Device device) {
    const auto parameter = [&](at::IntArrayRef sizes, std::uint64_t seed) {
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
      return (at::randn(sizes, generator) * 0.1).to(device).requires_grad_();
    };
    parameters = {parameter({100, 8}, 1), parameter({100, 8}, 2)};
  }

  void run(const at::Tensor& tokens, const at::Tensor& targets) {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    const at::Tensor scores = at::linear(at::embedding(parameters[0], tokens), parameters[1]);
    loss = at::cross_entropy_loss(scores.flatten(0, 1), targets.flatten());
    loss.backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters) parameter.sub_(parameter.grad(), 0.5);
  }

  std::vector<at::Tensor> parameters;
  at::Tensor loss;
};

TEST_P(BucketsTest, FeedOneGraphPerBucketThatEqualsEager) {
  TextStep eager(device()), graphed(device());
  StaticInputs inputs(device(), {.buckets = for_text({4, 8, 16})});
  std::map<std::int64_t, Graph> graphs;
  std::map<std::int64_t, at::Tensor> losses;
  GraphPoolRef pool;
  inputs.load({text(5, 0)});
  inputs.for_each_bucket([&](std::int64_t length) {
    Graph& graph = graphs.try_emplace(length, device()).first->second;
    const IValue& batch = inputs.microbatches()[0];
    graph.capture([&] { graphed.run(at_key(batch, "tokens"), at_key(batch, "targets")); }, {.pool = pool});
    pool = graph.pool();
    losses[length] = graphed.loss;
  });
  EXPECT_EQ(graphs.size(), 3U);
  for (const std::int64_t length : {3, 12, 8, 1, 16, 5, 4}) {
    const auto seed = static_cast<std::uint64_t>(10 * length);
    inputs.load({text(length, seed)});
    graphs.at(inputs.bucket()).replay();
    eager.run(padded(numbers({2, length}, seed), inputs.bucket(), 0).to(device()),
              padded(numbers({2, length}, seed + 1), inputs.bucket(), -100).to(device()));
    expect_values({losses.at(inputs.bucket())}, {eager.loss}, "at length " + std::to_string(length));
    expect_values(graphed.parameters, eager.parameters, "at length " + std::to_string(length));
  }
}

TEST_P(BucketsTest, RefuseWhatIsTooLongOrDoesNotFit) {
  StaticInputs inputs(device(), {.buckets = for_text({4, 8})});
  inputs.load({text(3, 1), text(4, 3)});
  const auto with_targets = [](std::int64_t length) {
    return dict({{"tokens", numbers({2, 3}, 1)}, {"targets", numbers({2, length}, 2)}});
  };
  EXPECT_THAT(refusal<UsageError>("too long a sequence",
                                  [&] {
                                    inputs.load({text(3, 1), text(9, 1)});
                                  }),
              HasSubstr("no bucket holds a length of 9; the buckets are 4, 8"));
  EXPECT_THAT(refusal<UsageError>("tensors of two lengths",
                                  [&] {
                                    inputs.load({text(3, 1), with_targets(2)});
                                  }),
              HasSubstr("microbatch 1['targets'] has length 2 along dimension 1, but microbatch 1['tokens'] has 3"));
  EXPECT_THAT(refusal<UsageError>(
                  "another size that is not padded",
                  [&] {
                    inputs.load({text(3, 1), dict({{"tokens", numbers({3, 3}, 1)}, {"targets", numbers({3, 3}, 1)}})});
                  }),
              AllOf(HasSubstr("microbatch 1['tokens']: expected Long [2, 3], got Long [3, 3]"),
                    HasSubstr("list what varies in the padding of the buckets")));
  EXPECT_EQ(inputs.bucket(), 4);
  EXPECT_EQ(inputs.bucket_uses()[0].batches, 1U);
}

TEST_P(BucketsTest, RefusePaddingsThatFitNoTensor) {
  struct Case {
    const char* title;
    Buckets buckets;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"an unknown tensor",
       {.sizes = {4}, .padding = {{"token", 0}}},
       "the buckets pad 'token', but the batch has no such tensor; microbatch 0 has ['tokens'], ['mask']"},
      {"a dimension that is missing",
       {.sizes = {4}, .padding = {{"tokens", 0, 2}}},
       "microbatch 0['tokens'] is to be padded along dimension 2, but has 2"},
      {"a value of another dtype",
       {.sizes = {4}, .padding = {{"tokens", 0.5}}},
       "microbatch 0['tokens'] cannot be padded with 0.5: its dtype is Long"},
      {"a value that is no bool",
       {.sizes = {4}, .padding = {{"mask", 2}}},
       "microbatch 0['mask'] cannot be padded with 2: its dtype is Bool"},
      {"a value out of range",
       {.sizes = {4}, .padding = {{"bytes", -100}}},
       "microbatch 0['bytes'] cannot be padded with -100: its dtype is Byte"},
      {"a padding given twice",
       {.sizes = {4}, .padding = {{"mask", 0}, {"mask", 1, -1}}},
       "the buckets pad microbatch 0['mask'] along dimension 1 twice"},
      {"nothing to pad", {.sizes = {4}, .dim = 3}, "no tensor of the batch has a dimension 3 to pad"},
  };
  const IValue batch = dict(
      {{"tokens", numbers({2, 3}, 1)}, {"mask", at::ones({2, 3}, at::kBool)}, {"bytes", at::ones({2, 3}, at::kByte)}});
  for (const Case& tested : cases) {
    StaticInputs inputs(device(), {.buckets = tested.buckets});
    EXPECT_THAT(refusal<UsageError>(tested.title, [&] { inputs.load({batch}); }),
                AllOf(HasSubstr(tested.message), HasSubstr("fix:")));
  }
}

TEST_P(BucketsTest, RefuseSizesThatDoNotAscend) {
  const auto make = [](const Buckets& buckets) { return StaticInputs(device(), {.buckets = buckets}); };
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{8, 4}, {4, 4}, {0, 4}}) {
    EXPECT_THAT(refusal<UsageError>("sizes", [&] { (void)make({.sizes = sizes}); }),
                HasSubstr("the sizes of buckets must be 1 or more, each larger than the one before, got " +
                          std::to_string(sizes[0]) + ", 4"));
  }
  EXPECT_THAT(refusal<UsageError>("no sizes",
                                  [&] {
                                    make({.padding = {{"x", 0}}});
                                  }),
              HasSubstr("the buckets have paddings, but no sizes"));
}

}  // namespace
}  // namespace pianola::buckets_test
