#include <pianola/graph/tape/tape.hpp>
#include <pianola/verify/verify.hpp>

#include <pianola/graph/testing/mlp.hpp>
#include <pianola/verify/testing/verify_test.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>

#include <functional>
#include <optional>
#include <vector>

namespace pianola::poison_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::NamedTensors;
using testing::same;
using testing::Tensors;
using Step = std::function<void()>;

// Reads of what the step itself has not written show only where it is filled with NaN.
class PoisonTest : public testing::VerifyTest {
 protected:
  static bool has_nan(const at::Tensor& tensor) { return tensor.isnan().any().item<bool>(); }
};
PIANOLA_ON_EVERY_DEVICE(PoisonTest);

// y is static: before the replay it holds the result of the step before.
TEST_P(PoisonTest, ShowsAReadOfTheResultOfTheStepBefore) {
  const at::Tensor x = randn({8}), w = at::zeros({8}, device());
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = x * 2; });
  const auto eager = [&](const Tensors&) {
    w.add_(x * 0);
    return Tensors{x * 2};
  };
  const auto faulty = [&](const Tensors&) {
    w.add_(y * 0);  // stale
    graph.replay();
    return Tensors{y};
  };
  graph.replay();
  const auto run = [&](bool poison) {
    return verify_and_expect_untouched<VerifyStep>(eager, faulty, {{"w", w}}, {.poison = poison});
  };
  EXPECT_EQ(run(false).verdict, Verdict::equal);
  const VerifyReport report = run(true);
  EXPECT_EQ(report.verdict, Verdict::differs) << report.to_text();
  EXPECT_EQ(report.steps, 2) << "in the first step there is no step before";
  EXPECT_THAT(report.to_text(), HasSubstr("it may read memory that this step did not write"));
}

// The intermediate belongs to nobody any more; a pointer into it is all that is left.
TEST_P(PoisonTest, ShowsAReadOfAnIntermediateOfTheGraph) {
  const at::Tensor x = randn({1024}).abs() + 1, w = at::zeros({1024}, device());
  at::Tensor y;
  void* address = nullptr;
  Graph graph(device());
  graph.capture([&] {
    const at::Tensor middle = x * 2;
    address = middle.data_ptr();
    y = middle + 1;
  });
  const at::Tensor middle = at::from_blob(address, {1024}, x.options());
  const auto eager = [&](const Tensors&) {
    w.add_(at::relu(-x));
    return Tensors{x * 2 + 1};
  };
  const auto faulty = [&](const Tensors&) {
    w.add_(at::relu(-middle));  // stale
    graph.replay();
    return Tensors{y};
  };
  graph.replay();
  const auto run = [&](bool poison) {
    return verify_and_expect_untouched<VerifyStep>(eager, faulty, {{"w", w}}, {.poison = poison});
  };
  EXPECT_EQ(run(false).verdict, Verdict::equal);
  const VerifyReport report = run(true);
  EXPECT_EQ(report.verdict, Verdict::differs) << report.to_text();
  EXPECT_EQ(report.steps, 1);
}

TEST_P(PoisonTest, LeavesWhatASoundStepReadsAlone) {
  testing::Training training(device(), /*dropout=*/0.2);
  training.step();
  Graph graph(device());
  graph.capture([&] { training.step(); });
  const Tensors results = {training.output, training.loss, training.gradients[0]};
  const auto eager = [&](const Tensors&) {
    training.step();
    return Tensors{training.output, training.loss, training.gradients[0]};
  };
  const auto graphed = [&](const Tensors&) {
    graph.replay();
    return results;
  };
  const auto report = verify_and_expect_untouched<VerifyStep>(eager, graphed, training.state(), {.steps = 6});
  EXPECT_EQ(report.verdict, Verdict::equal) << report.to_text();
  EXPECT_THAT(report.notes, IsEmpty());
}

// The second graph reads what the first one made in the step before.
TEST_P(PoisonTest, LeavesAloneWhatIsCarriedOverInATensor) {
  const at::Tensor x = randn({8}), w = at::zeros({8}, device());
  at::Tensor hidden, result;
  Graph first(device()), second(device());
  first.capture([&] { hidden = x * 3; });
  second.capture([&] { w.add_(hidden); });
  first.replay();
  const auto eager = [&] { w.add_(x * 3); };
  const auto graphed = [&] {
    second.replay();
    first.replay();
  };
  const auto report = verify_and_expect_untouched<Step>(eager, graphed, {{"w", w}});
  EXPECT_EQ(report.verdict, Verdict::equal) << report.to_text();
}

TEST_P(PoisonTest, LeavesStaticGradientsAlone) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  const auto run = [&](const Tensors&) {
    {
      const at::NoGradGuard no_grad;
      if (w.grad().defined()) w.sub_(w.grad(), 0.1);  // of the step before
    }
    w.mutable_grad().reset();
    at::mm(x, w).square().mean().backward();
    return Tensors{w.grad()};
  };
  Graph graph(device());
  graph.capture([&] {
    w.mutable_grad().reset();
    at::mm(x, w).square().mean().backward();
  });
  const at::Tensor gradient = w.grad();
  const auto graphed = [&](const Tensors&) {
    {
      const at::NoGradGuard no_grad;
      w.sub_(gradient, 0.1);
    }
    graph.replay();
    return Tensors{gradient};
  };
  const auto report = verify_and_expect_untouched<VerifyStep>(run, graphed, {{"w", w}});
  EXPECT_EQ(report.verdict, Verdict::equal) << report.to_text();
}

// What a tape fills, looked at from below.
class TapePoisonTest : public testing::DeviceTest {
 protected:
  static bool has_nan(const at::Tensor& tensor) { return tensor.isnan().any().item<bool>(); }
};

INSTANTIATE_TEST_SUITE_P(On, TapePoisonTest, ::testing::Values("cpu"), testing::device_name);

TEST_P(TapePoisonTest, FillsOnlyWhatReplaysWriteAnewAndNobodyElseHolds) {
  const at::Tensor x = randn({64});
  at::Tensor held, state = at::ones({64}), integers;
  void* middle = nullptr;
  void* filled = nullptr;
  Graph graph(device());
  graph.capture([&] {
    const at::Tensor a = x * 2;
    middle = a.data_ptr();
    const at::Tensor b = at::empty({64});
    filled = b.data_ptr();
    b.narrow(0, 0, 32).copy_(a.narrow(0, 0, 32));
    held = a + 1;
    integers = held.gt(0);
    state.add_(held).add_(b.narrow(0, 0, 32).sum());
  });
  const at::Tensor a = at::from_blob(middle, {64}), b = at::from_blob(filled, {64});
  b.zero_();  // nobody else does, and nobody knows what is there
  graph.replay();
  const at::Tensor before = state.clone(), held_before = held.clone(), x_before = x.clone(), b_before = b.clone();
  EXPECT_TRUE(graph::is_made_by_a_tape(held));
  EXPECT_TRUE(graph::is_made_by_a_tape(held.narrow(0, 1, 2)));
  EXPECT_FALSE(graph::is_made_by_a_tape(state));
  EXPECT_FALSE(graph::is_made_by_a_tape(x));

  graph::poison_tapes({});
  EXPECT_TRUE(has_nan(a));
  EXPECT_TRUE(same(b, b_before)) << "each replay writes only a part of it";
  EXPECT_TRUE(same(held, held_before));
  EXPECT_TRUE(same(state, before));
  EXPECT_TRUE(same(x, x_before));

  graph::poison_tapes(std::vector<at::Tensor>{held, state, x, integers});
  EXPECT_TRUE(has_nan(held));
  EXPECT_TRUE(same(state, before)) << "not the tape's to fill";
  EXPECT_TRUE(same(x, x_before));

  graph.replay();
  EXPECT_TRUE(same(held, held_before));
  EXPECT_FALSE(has_nan(state));
}

TEST_P(TapePoisonTest, LeavesAloneWhatAnotherTapeReadsWhileATensorHoldsIt) {
  const at::Tensor x = randn({64});
  at::Tensor carried, result;
  Graph first(device()), second(device());
  first.capture([&] { carried = x * 2; });
  second.capture([&] { result = carried + 1; });
  first.replay();
  const void* address = carried.data_ptr();
  graph::poison_tapes({});
  EXPECT_FALSE(has_nan(carried));
  carried.reset();  // two graphs share it, and nobody looks
  graph::poison_tapes({});
  EXPECT_TRUE(has_nan(at::from_blob(const_cast<void*>(address), {64})));
  first.replay();
  second.replay();
  EXPECT_TRUE(same(result, x * 2 + 1));
}

TEST_P(TapePoisonTest, KnowsOnlyLiveTapes) {
  const at::Tensor x = randn({64});
  at::Tensor y;
  std::optional<Graph> graph(std::in_place, device());
  graph->capture([&] { y = x * 2; });
  EXPECT_TRUE(graph::is_made_by_a_tape(y));
  Graph moved = *std::move(graph);
  EXPECT_TRUE(graph::is_made_by_a_tape(y));
  moved.reset();
  EXPECT_FALSE(graph::is_made_by_a_tape(y));
  moved.capture([&] { y = x * 3; });
  EXPECT_TRUE(graph::is_made_by_a_tape(y));
  EXPECT_ANY_THROW(Graph(device()).capture([&] {
    y = x * 4;
    throw 1;
  }));
  EXPECT_FALSE(graph::is_made_by_a_tape(y));
}

TEST_P(TapePoisonTest, AWatchSeesEachOperationOfAReplay) {
  const at::Tensor x = randn({64});
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = (x * 2).view({8, 8}).add_(1); });
  std::vector<std::string> names;
  {
    const graph::ReplayWatch watch([&](const graph::TapeOp& op) { names.push_back(op.info->name); });
    graph.replay();
  }
  graph.replay();
  EXPECT_EQ(names, (std::vector<std::string>{"aten::mul.Scalar", "aten::add_.Scalar"}));
}

}  // namespace
}  // namespace pianola::poison_test
