#include <pianola/verify/narrow.hpp>

#include <pianola/trace/testing/trace_of.hpp>
#include <pianola/verify/dependence.hpp>
#include <pianola/verify/testing/verify_test.hpp>
#include <pianola/verify/trace_change.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

namespace pianola::narrow_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::names_of;
using testing::Tensors;
using testing::trace_of;
using Step = std::function<void()>;

// From a difference to the operation where it starts.
class NarrowTest : public testing::VerifyTest {
 protected:
  /// A graph of `run`, and a verification that it fails, with the host put back by `reset`.
  static VerifyReport verify_a_graph_of(const Step& run, const testing::NamedTensors& state, const Step& reset) {
    Graph graph(device());
    reset();
    graph.capture(run, {.warmup = 0});
    return verify_and_expect_untouched<Step>(run, [&] { graph.replay(); }, state, {.reset = reset});
  }
};
PIANOLA_ON_EVERY_DEVICE(NarrowTest);

TEST_P(NarrowTest, ACountOfTheHostIsFoundBehindTheOperationsThatAgree) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2), out = at::zeros({4, 16}, device());
  int count = 0, line = 0;
  const auto run = [&] {
    const at::Tensor y = at::tanh(at::mm(x, w));
    const double scale = ++count;
    line = __LINE__ + 1;
    const at::Tensor z = y.div(scale);
    out.copy_(at::sigmoid(z));
  };
  // Warm-up and capture count too: the graph divides by 4.
  Graph graph(device());
  graph.capture(run);
  const auto report =
      verify_and_expect_untouched<Step>(run, [&] { graph.replay(); }, {{"out", out}}, {.reset = [&] { count = 3; }});
  EXPECT_EQ(report.verdict, Verdict::differs) << report.to_text();
  EXPECT_EQ(report.steps, 2) << "the first divides by 4 as well";
  ASSERT_TRUE(report.origin) << report.to_text();
  EXPECT_EQ(report.origin->op, "aten::div.Scalar");
  EXPECT_EQ(report.origin->number, 3U);
  EXPECT_EQ(report.origin->place.line, line);
  EXPECT_THAT(report.origin->what, HasSubstr("its argument 'other' is 5, and was 4 in step 1"));
}

TEST_P(NarrowTest, ATensorThatIsReplacedIsFoundWhereItIsRead) {
  const at::Tensor x = at::ones({4}, device()), out = at::zeros({4}, device());
  at::Tensor cache = at::zeros({4}, device());
  const at::Tensor first = cache;
  const auto run = [&] {
    cache = cache + x;
    out.copy_(cache * 2);
  };
  const auto report = verify_a_graph_of(run, {{"out", out}}, [&] { cache = first; });
  EXPECT_EQ(report.verdict, Verdict::differs) << report.to_text();
  EXPECT_EQ(report.steps, 2);
  ASSERT_TRUE(report.origin) << report.to_text();
  EXPECT_EQ(report.origin->op, "aten::add.Tensor");
  EXPECT_THAT(report.origin->what, HasSubstr("its argument 'self' is another tensor than in step 1"));
}

TEST_P(NarrowTest, AnotherPathIsFoundAtItsFirstOperation) {
  const at::Tensor x = at::ones({4}, device()), out = at::zeros({4}, device());
  int step = 0;
  const auto run = [&] {
    const at::Tensor y = x + 1;
    out.copy_(++step % 2 == 1 ? at::tanh(y) : at::sigmoid(y));
  };
  const auto report = verify_a_graph_of(run, {{"out", out}}, [&] { step = 0; });
  EXPECT_EQ(report.verdict, Verdict::differs) << report.to_text();
  ASSERT_TRUE(report.origin) << report.to_text();
  EXPECT_EQ(report.origin->number, 2U);
  EXPECT_THAT(report.origin->what, HasSubstr("aten::sigmoid ran here, and aten::tanh in step 1"));
}

// The learning rate changes, but the loss is wrong for another reason, and earlier.
TEST_P(NarrowTest, ANumberThatDoesNotReachTheDifferenceIsNotBlamed) {
  const at::Tensor x = at::ones({4}, device()), w = at::ones({4}, device());
  double rate = 0.5;
  at::Tensor loss;
  const auto run = [&](bool wrong) {
    loss = (x + (wrong ? 2 : 1)).mul(3);
    w.sub_(rate);
    return Tensors{loss};
  };
  int step = 0;
  const auto graphed = [&](const Tensors&) { return run(++step > 1); };
  const auto report = verify_and_expect_untouched<VerifyStep>(
      [&](const Tensors&) { return run(false); }, graphed, {{"w", w}},
      {.between = [&](int steps) { rate = 0.5 / (steps + 1); }, .reset = [&] { rate = 0.5; }});
  EXPECT_EQ(report.steps, 2) << report.to_text();
  ASSERT_THAT(names_of(report.differences), ElementsAre("output 0"));
  EXPECT_FALSE(report.origin) << report.to_text();
  EXPECT_THAT(report.notes, Contains(HasSubstr("'output 0' is first written by operation 2 (aten::mul.Scalar")));
}

TEST_P(NarrowTest, EagerThatCannotBeCapturedIsANote) {
  const at::Tensor x = at::ones({4}, device()), out = at::zeros({4}, device());
  const auto eager = [&] { out.copy_(x * at::nonzero(x).size(0)); };
  const auto report = verify_and_expect_untouched<Step>(eager, [&] { out.fill_(3); }, {{"out", out}});
  EXPECT_EQ(report.verdict, Verdict::differs);
  EXPECT_FALSE(report.origin);
  EXPECT_THAT(report.notes, Contains(HasSubstr("eager could not be captured to compare its operations one by one: "
                                               "aten::nonzero")));
  EXPECT_THAT(report.notes, Contains(HasSubstr("'out' is first written by operation 3 (aten::copy_")));
}

// Backward, optimizer, dropout, views, in-place writes: a capture of eager agrees with eager everywhere.
TEST_P(NarrowTest, ACaptureOfASoundStepAgreesWithEagerOperationByOperation) {
  const at::Tensor x = randn({8, 16}), w = randn({16, 16}, 2).requires_grad_(),
                   momentum = at::zeros({16, 16}, device());
  const at::Tensor buffer = at::zeros({8, 16}, device());
  const auto step = [&] {
    at::Tensor y = at::dropout(at::mm(x, w).t().contiguous().t(), 0.3, /*train=*/true);
    buffer.narrow(0, 2, 3).copy_(y.detach().narrow(0, 0, 3)).mul_(0.5);
    const at::Tensor gradient = torch::autograd::grad({(y * y + buffer).mean()}, {w})[0];
    const at::NoGradGuard no_grad;
    w.sub_(momentum.mul_(0.9).add_(gradient), 0.1);
  };
  int calls = 0;
  const auto wrong_at_last = [&] {
    step();
    const at::NoGradGuard no_grad;
    if (++calls == 3) w.add_(1);
  };
  const auto report =
      verify_and_expect_untouched<Step>(step, wrong_at_last, {{"w", w}, {"momentum", momentum}, {"buffer", buffer}});
  EXPECT_EQ(report.steps, 3);
  EXPECT_THAT(names_of(report.differences), ElementsAre("w"));
  EXPECT_FALSE(report.origin) << report.to_text();
  EXPECT_THAT(report.notes, Contains(HasSubstr("a capture of eager computes what eager does, operation by operation")));
}

// The parts.

TEST(TraceChange, TellsNumbersShapesAndOperations) {
  const at::Tensor x = at::ones({4});
  const auto step = [&](double number, std::int64_t size, bool other) {
    return trace_of([&] {
      const at::Tensor y = x.mul(number).narrow(0, 0, size) + 1;
      other ? at::tanh(y) : at::sigmoid(y);
    });
  };
  const OpTrace first = step(2, 4, false);
  const auto changes = [&](const OpTrace& later) {
    std::vector<std::string> all;
    for (const auto& change : verification::changes_between({.trace = &first, .own = {}, .when = "before"},
                                                            {.trace = &later, .own = {}, .when = {}})) {
      all.push_back(std::to_string(change.op) + ": " + change.what);
    }
    return all;
  };
  EXPECT_THAT(changes(step(2, 4, false)), IsEmpty());
  EXPECT_THAT(changes(step(2.5, 4, false)), ElementsAre("0: its argument 'other' is 2.5, and was 2 before"));
  EXPECT_THAT(changes(step(2, 3, false)), ElementsAre("1: its argument 'end' is 3, and was 4 before",
                                                      "2: its argument 'self' has shape [3], and had [4] before",
                                                      "3: its argument 'self' has shape [3], and had [4] before"));
  EXPECT_THAT(changes(step(2, 4, true)), ElementsAre("3: aten::tanh ran here, and aten::sigmoid before"));
}

TEST(Dependence, FollowsWritesThroughViewsAndNewMemory) {
  const at::Tensor x = at::ones({4}), out = at::zeros({8});
  at::Tensor made;
  const OpTrace trace = trace_of([&] {
    const at::Tensor y = x * 2;    // 0
    const at::Tensor z = x * 3;    // 1
    out.narrow(0, 4, 4).copy_(y);  // 2, 3
    made = z + 1;                  // 4
    made.add_(1);                  // 5
  });
  ASSERT_EQ(trace.ops().size(), 6U);
  EXPECT_EQ(verification::first_writer(trace, out), 3U);
  EXPECT_EQ(verification::first_writer(trace, out.narrow(0, 0, 4)), std::nullopt) << "other elements";
  EXPECT_EQ(verification::first_writer(trace, made), 4U);
  EXPECT_EQ(verification::first_writer(trace, x), std::nullopt);
  EXPECT_TRUE(verification::reaches(trace, 0, out));
  EXPECT_FALSE(verification::reaches(trace, 0, made));
  EXPECT_TRUE(verification::reaches(trace, 1, made));
  EXPECT_FALSE(verification::reaches(trace, 1, out));
}

}  // namespace
}  // namespace pianola::narrow_test
