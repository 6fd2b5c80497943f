#include <pianola/core/error.hpp>
#include <pianola/verify/verify.hpp>

#include <pianola/verify/testing/verify_test.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace pianola::state_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::names_of;
using testing::refusal;
using testing::same;
using ::testing::SizeIs;
using testing::Tensors;
using Step = std::function<void()>;

// What nobody listed, what cannot be repeated, what throws: all is told, and all is put back.
class StateTest : public testing::VerifyTest {};
PIANOLA_ON_EVERY_DEVICE(StateTest);

TEST_P(StateTest, ThatIsMissingIsNamedWithItsLineAndPutBackAsWell) {
  const at::Tensor w = at::zeros({4}, device()), hidden = at::zeros({4, 2}, device());
  int line = 0;
  const auto run = [&] {
    line = __LINE__ + 1;
    hidden.narrow(0, 0, 2).add_(1);
    w.add_(hidden.sum());
  };
  const auto report = verify_and_expect_untouched<Step>(run, run, {{"w", w}}, {}, {{"hidden", hidden}});
  EXPECT_TRUE(report.ok()) << report.to_text();
  ASSERT_THAT(report.missing_state, SizeIs(1)) << "once, however many steps write it";
  EXPECT_EQ(report.missing_state[0].shape, "Float [2, 2]");
  EXPECT_EQ(report.missing_state[0].op, "aten::add_.Scalar");
  EXPECT_EQ(report.missing_state[0].place.line, line) << report.to_text();
  EXPECT_THAT(report.to_text(), HasSubstr("Written and not listed in the state"));
}

TEST_P(StateTest, ThatIsListedThroughAnotherViewIsNotMissing) {
  const at::Tensor whole = at::zeros({8}, device());
  const auto run = [&] { whole.narrow(0, 4, 4).add_(1); };
  const auto report =
      verify_and_expect_untouched<Step>(run, run, {{"half", whole.narrow(0, 0, 4)}}, {}, {{"whole", whole}});
  EXPECT_THAT(report.missing_state, IsEmpty());
}

TEST_P(StateTest, ThatTheCallbackWritesIsPutBackAndNotMissing) {
  const at::Tensor x = at::zeros({4}, device()), w = at::zeros({4}, device());
  std::vector<int> counts;
  const VerifyOptions options{.steps = 3, .between = [&](int steps) {
                                counts.push_back(steps);
                                x.fill_(steps);
                              }};
  const auto run = [&] { w.add_(x); };
  const auto report = verify_and_expect_untouched<Step>(run, run, {{"w", w}}, options, {{"x", x}});
  EXPECT_TRUE(report.ok()) << report.to_text();
  EXPECT_THAT(report.missing_state, IsEmpty());
  EXPECT_THAT(counts, ElementsAre(1, 2, 1, 2)) << "alike for both sides";
}

TEST_P(StateTest, OfTheHostIsResetBeforeEachRunAndAtTheEnd) {
  const at::Tensor w = at::zeros({4}, device());
  int count = 0, resets = 0;
  const auto run = [&] { w.add_(++count); };
  const auto report = verify_and_expect_untouched<Step>(run, run, {{"w", w}}, {.steps = 4, .reset = [&] {
                                                                                 ++resets;
                                                                                 count = 0;
                                                                               }});
  EXPECT_TRUE(report.ok()) << report.to_text();
  EXPECT_EQ(count, 0);
  EXPECT_EQ(resets, 3);
}

TEST_P(StateTest, OfAStepThatReadsOnlyWhatItIsGivenIsNone) {
  const at::Tensor x = randn({4});
  const auto run = [&](const Tensors&) { return Tensors{x * 2}; };
  EXPECT_TRUE(verify_and_expect_untouched<VerifyStep>(run, run, {}).ok());
}

TEST_P(StateTest, ThatIsListedTwiceOrSharedIsSavedOnce) {
  const at::Tensor w = at::zeros({4}, device());
  const auto run = [&] { w.add_(1); };
  EXPECT_TRUE(verify_and_expect_untouched<Step>(run, run, {{"w", w}, {"again", w}, {"row", w[2]}}).ok());
}

TEST_P(StateTest, OfAGeneratorNobodyListedIsPutBackAndTold) {
  const at::Tensor x = at::ones({8}, device());
  at::Generator mine = generator().clone();
  const at::Tensor before = state_of(mine);
  const auto run = [&](const Tensors&) { return Tensors{at::bernoulli(at::full_like(x, 0.5), mine)}; };
  const auto report = verify_and_expect_untouched<VerifyStep>(run, run, {});
  EXPECT_TRUE(report.ok()) << report.to_text();
  EXPECT_TRUE(same(state_of(mine), before));
  ASSERT_THAT(report.notes, SizeIs(1));
  EXPECT_THAT(report.notes[0], HasSubstr("VerifyOptions::generators does not list"));
  EXPECT_THAT(report.notes[0], HasSubstr("state_test.cpp:"));
}

TEST_P(StateTest, OfTheHostThatChangesMakesEagerNondeterministic) {
  const at::Tensor x = at::ones({8}, device());
  double number = 0.25;
  int line = 0;
  const auto run = [&](const Tensors&) {
    const at::Tensor y = x + 1;
    number += 0.5;
    line = __LINE__ + 1;
    const at::Tensor z = y.mul(number);
    return Tensors{z};
  };
  const auto report = verify_and_expect_untouched<VerifyStep>(run, run, {});
  EXPECT_EQ(report.verdict, Verdict::nondeterministic) << report.to_text();
  EXPECT_EQ(report.exit_code(), 3);
  EXPECT_FALSE(report.ok());
  ASSERT_THAT(names_of(report.eager_differences), ElementsAre("output 0"));
  EXPECT_EQ(report.eager_differences[0].step, 1);
  EXPECT_THAT(report.eager_differences[0].first, HasSubstr("the first run 1.5, the second "));
  ASSERT_TRUE(report.origin) << report.to_text();
  EXPECT_EQ(report.origin->op, "aten::mul.Scalar");
  EXPECT_EQ(report.origin->place.line, line);
  EXPECT_THAT(report.origin->what, HasSubstr("its argument 'other' is "));
}

TEST_P(StateTest, OfTheHostThatChangesLaterIsFoundInTheStepWhereItDoes) {
  const at::Tensor w = at::ones({8}, device());
  int step = 0, calls = 0;
  const auto run = [&] { w.add_(++step < 3 ? 1 : ++calls); };
  const auto report =
      verify_and_expect_untouched<Step>(run, [&] { w.add_(1); }, {{"w", w}}, {.steps = 4, .reset = [&] { step = 0; }});
  EXPECT_EQ(report.verdict, Verdict::nondeterministic) << report.to_text();
  EXPECT_EQ(report.eager_differences.at(0).step, 3);
}

// With the option off nobody tells a wrong graph from a moody model.
TEST_P(StateTest, WithoutARepeatADifferenceIsTheGraphs) {
  const at::Tensor x = at::ones({8}, device());
  double number = 0.25;
  const auto run = [&](const Tensors&) { return Tensors{x * (number += 0.5)}; };
  const auto report = verify_and_expect_untouched<VerifyStep>(run, run, {}, {.repeat_eager = false});
  EXPECT_EQ(report.verdict, Verdict::differs) << report.to_text();
}

TEST_P(StateTest, IsPutBackWhicheverSideThrowsInWhicheverStep) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  w.mutable_grad() = randn({16, 16}, 3);
  for (int side = 0; side < 2; ++side) {
    for (int throwing = 1; throwing <= 3; ++throwing) {
      SCOPED_TRACE(std::to_string(side) + ", step " + std::to_string(throwing));
      int step = 0;
      const auto good = [&] {
        at::mm(x, w).sum().backward();
        const at::NoGradGuard no_grad;
        w.add_(at::rand({16, 16}, generator(), w.options().requires_grad(false)));
      };
      const auto bad = [&] {
        good();
        if (++step == throwing) throw std::runtime_error("no more batches");
      };
      const auto report = side == 0 ? verify_and_expect_untouched<Step>(bad, good, {{"w", w}}, {.steps = 3})
                                    : verify_and_expect_untouched<Step>(good, bad, {{"w", w}}, {.steps = 3});
      EXPECT_EQ(report.verdict, Verdict::failed);
      EXPECT_EQ(report.exit_code(), 1);
      EXPECT_EQ(report.error, std::string(side == 0 ? "eager" : "the graphed side") + " threw in step " +
                                  std::to_string(throwing) + ": no more batches");
      EXPECT_THAT(report.to_text(), HasSubstr("failed: " + report.error));
    }
  }
}

TEST_P(StateTest, IsPutBackWhereTheCallbacksThrow) {
  const at::Tensor w = at::zeros({4}, device());
  const auto run = [&] { w.add_(1); };
  const auto error_of = [&](const VerifyOptions& options) {
    const auto report = verify_and_expect_untouched<Step>(run, run, {{"w", w}}, options);
    EXPECT_EQ(report.verdict, Verdict::failed);
    return report.error;
  };
  EXPECT_EQ(error_of({.between = [](int) { throw std::runtime_error("no batch"); }}),
            "`between` threw after step 1: no batch");
  EXPECT_EQ(error_of({.reset = [] { throw std::runtime_error("no way back"); }}), "`reset` threw: no way back");
  EXPECT_EQ(error_of({.between = [](int) { throw 3; }}),
            "`between` threw after step 1: something that is no std::exception");
}

TEST_P(StateTest, IsPutBackWhereMemoryRunsOut) {
  const at::Tensor w = at::zeros({4}, device());
  const auto greedy = [&] {
    w.add_(1);
    (void)at::zeros({std::int64_t{1} << 50}, device());
  };
  const auto report = verify_and_expect_untouched<Step>([&] { w.add_(1); }, greedy, {{"w", w}});
  EXPECT_EQ(report.verdict, Verdict::failed);
  EXPECT_THAT(report.error, HasSubstr("the graphed side threw in step 1: "));
  EXPECT_THAT(report.error, HasSubstr("memory"));
}

TEST_P(StateTest, WithNothingToCompareIsAnError) {
  const auto report = verify_and_expect_untouched<Step>([] {}, [] {}, {});
  EXPECT_EQ(report.verdict, Verdict::failed);
  EXPECT_THAT(report.error, HasSubstr("there is nothing to compare"));
  const auto reads = [](const Tensors& in) {
    (void)(in[0] * 2);
    return Tensors{};
  };
  EXPECT_EQ(verify(VerifyStep(reads), VerifyStep(reads), {}, {.inputs = {{randn({3})}}}).verdict, Verdict::failed);
  const auto writes = [](const Tensors& in) {
    in[0].mul_(2);
    return Tensors{};
  };
  EXPECT_EQ(verify(VerifyStep(writes), VerifyStep(writes), {}, {.inputs = {{randn({3})}}}).verdict, Verdict::equal);
}

TEST_P(StateTest, WithNaNInItIsNoDifference) {
  const at::Tensor w = at::full_like(at::zeros({4}, device()), std::numeric_limits<double>::quiet_NaN());
  const auto run = [&] { w.add_(1); };
  EXPECT_TRUE(verify(Step(run), Step(run), named({{"w", w}})).ok());
}

TEST_P(StateTest, RefusesOptionsThatMakeNoSense) {
  const at::Tensor w = at::zeros({4}, device());
  const auto run = [&] { w.add_(1); };
  const auto refused = [&](const std::string& title, const VerifyOptions& options) {
    return refusal<UsageError>(title, [&] { (void)verify(Step(run), Step(run), named({{"w", w}}), options); });
  };
  EXPECT_THAT(refused("steps = 0", {.steps = 0}), HasSubstr("steps must be 1 or more, got 0"));
  EXPECT_THAT(refused("graphed_warmup = -1", {.graphed_warmup = -1}), HasSubstr("graphed_warmup must be 0 or more"));
  EXPECT_THAT(refused("a negative tolerance", {.tolerance = {{at::kFloat, {.relative = -1}}}}),
              HasSubstr("the tolerance of Float must be 0 or more"));
  EXPECT_THAT(refused("an undefined generator", {.generators = {at::Generator()}}), HasSubstr("is undefined"));
  EXPECT_THAT(refused("inputs of a step without", {.inputs = {{w}}}), HasSubstr("the steps take none"));
  EXPECT_THAT(refusal<UsageError>("an undefined state",
                                  [&] {
                                    (void)verify(Step(run), Step(run), {{"v", {}}});
                                  }),
              HasSubstr("'v' in `state` is undefined"));
  EXPECT_THAT(refusal<UsageError>("a sparse state",
                                  [&] {
                                    (void)verify(Step(run), Step(run), {{"v", w.to_sparse()}});
                                  }),
              HasSubstr("'v' in `state` has no memory of its own"));
  EXPECT_THAT(refusal<UsageError>("an empty step", [&] { (void)verify(Step(run), Step(), {}); }),
              HasSubstr("the graphed step is empty"));
}

TEST_P(StateTest, RefusesToVerifyInsideACapture) {
  const at::Tensor w = at::zeros({4}, device());
  Graph graph(device());
  const auto inside = [&] {
    w.add_(1);
    (void)verify(Step([&] { w.add_(1); }), Step([&] { w.add_(1); }), named({{"w", w}}));
  };
  EXPECT_THAT(refusal<UsageError>("verify() in a capture", [&] { graph.capture(inside, {.warmup = 0}); }),
              HasSubstr("while a capture is open"));
}

}  // namespace
}  // namespace pianola::state_test
