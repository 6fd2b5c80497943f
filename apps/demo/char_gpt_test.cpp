#include <apps/demo/char_gpt.hpp>
#include <apps/demo/comparison.hpp>
#include <apps/demo/experiment.hpp>
#include <apps/demo/sampling.hpp>
#include <apps/demo/trainer.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/training/full_iteration.hpp>

#include <string>
#include <vector>

namespace pianola::demo {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string proverbs() {
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text +=
        "A rolling stone gathers no moss. Haste makes waste. The early bird catches the worm; all is well, number " +
        std::to_string(i) + ".\n";
  }
  return text;
}

class CharGptTest : public pianola::testing::DeviceTest {
 protected:
  [[nodiscard]] TrainerConfig config(std::int64_t steps) const {
    return {.model =
                {.vocabulary = text_.vocabulary(), .layers = 2, .width = 32, .heads = 2, .context = 24, .dropout = 0.2},
            .batch = 4,
            .steps = steps,
            .seed = 5};
  }
  [[nodiscard]] BatchStream batches() const { return {text_, 4, 24, 5}; }

  Text text_{proverbs()};
};

TEST_P(CharGptTest, TenIterationsWithReplaysAreBitEqualToEager) {
  Trainer eager(config(10), device());
  BatchStream eager_batches = batches();
  for (int i = 0; i < 10; ++i) {
    eager.load(eager_batches.next());
    eager.finish(eager.step());
  }
  const std::vector<NamedTensor> expected = eager.state();

  Trainer replayed(config(10), device());
  BatchStream replay_batches = batches();
  FullIteration iteration([&](const auto& microbatches) -> c10::IValue { return replayed.step(microbatches); });
  for (int i = 0; i < 10; ++i) {
    replayed.load(replay_batches.next());
    replayed.finish(iteration(replayed.inputs()).toTensor());
  }
  const std::vector<NamedTensor> actual = replayed.state();

  for (const char* name :
       {"losses", "blocks.1.mlp_in.weight", "state.0.exp_avg_sq", "state.0.step", "group.0.lr", "generator"}) {
    EXPECT_THAT(expected, Contains(Field(&NamedTensor::name, name)));
  }
  const Comparison comparison = compare(expected, actual);
  EXPECT_TRUE(comparison.equal()) << comparison.first;
  EXPECT_EQ(replayed.losses().numel(), 10);
  EXPECT_EQ(iteration.info().signatures.at(0).replays, 7U);
  EXPECT_FALSE(at::equal(actual.back().tensor, state_of(generator()).zero_())) << "dropout drew nothing";
}

TEST_P(CharGptTest, EagerIsReproducibleAndTheSeedMatters) {
  const auto losses = [&](std::uint64_t seed) {
    TrainerConfig seeded = config(6);
    seeded.seed = seed;
    Trainer trainer(seeded, device());
    BatchStream stream = batches();
    for (int i = 0; i < 6; ++i) {
      trainer.load(stream.next());
      trainer.finish(trainer.step());
    }
    return trainer.losses();
  };
  EXPECT_TRUE(pianola::testing::same(losses(5), losses(5)));
  EXPECT_FALSE(at::equal(losses(5), losses(6)));
}

TEST_P(CharGptTest, AnExperimentLearnsAndReportsWhatHappened) {
  Experiment experiment(text_, config(60), device());
  std::vector<double> eager, replay;
  std::size_t nodes = 0;
  experiment.run({.eager = [&](const Progress& progress) { eager.push_back(progress.loss); },
                  .captured = [&](const GraphInfo& graph) { nodes = graph.nodes; },
                  .replay = [&](const Progress& progress) { replay.push_back(progress.loss); }});
  EXPECT_TRUE(experiment.comparison().equal()) << experiment.comparison().first;
  EXPECT_GT(nodes, 50U);
  EXPECT_THAT(eager, SizeIs(10));
  EXPECT_EQ(eager, replay);
  EXPECT_LT(eager.back(), 0.9 * eager.front());
  EXPECT_EQ(experiment.eager_losses(), experiment.replay_losses());
  EXPECT_GT(experiment.replay().steps_per_second, 0);
  EXPECT_GT(experiment.graph().pool_bytes, 0U);
}

TEST_P(CharGptTest, EachStepOfTheTrainingThatIsMeasuredIsAReplay) {
  Experiment experiment(text_, config(5), device());
  experiment.run({});
  const auto& iterations = experiment.iteration().signatures;
  ASSERT_THAT(iterations, SizeIs(1));
  EXPECT_EQ(iterations[0].eager_calls, Experiment::kWarmup - 1U);
  EXPECT_EQ(iterations[0].replays, 5U + 1U);
}

TEST_P(CharGptTest, TheGraphToLookAtEqualsTheOneThatIsReplayed) {
  Experiment experiment(text_, config(3), device(), /*branches=*/4);
  GraphInfo shown;
  experiment.run({.inspected = [&](const Graph& graph) { shown = graph.info(); }});
  ASSERT_TRUE(shown.branches.has_value());
  const BranchInfo& replayed = *experiment.graph().branches;
  EXPECT_EQ(shown.branches->nodes, replayed.nodes);
  EXPECT_EQ(shown.branches->units, replayed.units);
  EXPECT_EQ(shown.branches->edges_before, replayed.edges_before);
}

TEST_P(CharGptTest, ReplaysOnBranchesTrainTheSameBits) {
  Experiment experiment(text_, config(20), device(), /*branches=*/4);
  experiment.run({});
  EXPECT_TRUE(experiment.comparison().equal()) << experiment.comparison().first;
  ASSERT_TRUE(experiment.graph().branches.has_value());
  const BranchInfo& branches = *experiment.graph().branches;
  EXPECT_EQ(branches.branches, 4);
  EXPECT_GT(branches.units, 50U) << branches.reason;
  EXPECT_NE(branches.rebuilt, !branches.reason.empty());
}

TEST_P(CharGptTest, SamplingContinuesThePromptAndLeavesTheGeneratorAlone) {
  const Trainer trainer(config(1), device());
  const at::Tensor before = state_of(generator());
  const std::string first = sample(trainer.model(), text_, "The ", {.length = 40});
  EXPECT_EQ(first.substr(0, 4), "The ");
  EXPECT_THAT(first, SizeIs(44));
  EXPECT_EQ(first, sample(trainer.model(), text_, "The ", {.length = 40}));
  EXPECT_NE(first, sample(trainer.model(), text_, "The ", {.length = 40, .seed = 2}));
  EXPECT_TRUE(pianola::testing::same(state_of(generator()), before));
}

TEST_P(CharGptTest, NoCharacterSeesTheNext) {
  const Trainer trainer(config(1), device());
  at::Tensor tokens = randint(text_.vocabulary(), {1, 24});
  const at::Tensor before = trainer.model().logits(tokens, CharGpt::Mode::evaluate);
  tokens.select(1, 23).add_(1).remainder_(text_.vocabulary());
  const at::Tensor after = trainer.model().logits(tokens, CharGpt::Mode::evaluate);
  EXPECT_TRUE(pianola::testing::same(after.narrow(1, 0, 23), before.narrow(1, 0, 23)));
  EXPECT_FALSE(at::equal(after, before));
}

PIANOLA_ON_EVERY_DEVICE(CharGptTest);

TEST(Comparison, NamesTheFirstTensorThatDiffersAndHowMuch) {
  const at::Tensor values = at::zeros({4});
  const at::Tensor others = values.clone();
  others[2] = 0.5;
  const Comparison comparison = compare({{.name = "a", .tensor = values}, {.name = "b", .tensor = values}},
                                        {{.name = "a", .tensor = values}, {.name = "b", .tensor = others}});
  EXPECT_FALSE(comparison.equal());
  EXPECT_EQ(comparison.unequal, 1U);
  EXPECT_EQ(comparison.values, 8U);
  EXPECT_EQ(comparison.first, "b: 1 of 4 values differ, first at 2, by at most 0.5");
}

TEST(WarmupAndCosine, RisesToTheBaseRateAndFallsToTheLast) {
  const LearningRate rate = warmup_and_cosine(1000, 0.1);
  EXPECT_DOUBLE_EQ(rate(0, 1.0), 0.02);
  EXPECT_DOUBLE_EQ(rate(50, 1.0), 1.0);
  EXPECT_NEAR(rate(525, 1.0), 0.55, 1e-9);
  EXPECT_NEAR(rate(999, 1.0), 0.1, 1e-4);
  EXPECT_DOUBLE_EQ(warmup_and_cosine(1, 0.1)(0, 1.0), 1.0);
}

}  // namespace
}  // namespace pianola::demo
