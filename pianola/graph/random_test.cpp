#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace pianola::random_test {
namespace {

using ::testing::AllOf;
using testing::clone_all;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::refusal;
using testing::same;
using testing::Training;

// Random numbers are those of eager, and the generators stand where eager would leave them.
class RandomTest : public testing::DeviceTest {
 protected:
  static constexpr int kSteps = 8;

  // `between(step)` runs before each step of both runs. Gives the state of the generator after each step beside the rest.
  static std::vector<NamedTensors> run(const std::function<void(Training&)>& step, Training& training,
                                       const std::function<void(int)>& between) {
    std::vector<NamedTensors> results;
    for (int i = 0; i < kSteps; ++i) {
      between(i);
      training.feed(i);
      step(training);
      results.push_back(clone_all(training.everything()));
      results.back().emplace_back("generator", state_of(generator()));
    }
    return results;
  }

  static void expect_replays_equal_eager(const std::function<void(int)>& between) {
    seed(11);
    Training eager(device(), 0.4);
    const auto expected = run([](Training& training) { training.step(); }, eager, between);
    EXPECT_FALSE(same(expected[0].back().second, expected[1].back().second)) << "a step moves the generator";

    seed(11);
    Training graphed(device(), 0.4);
    Graph graph(device());
    graph.capture([&] { graphed.step(); });
    const auto actual = run([&](Training&) { graph.replay(); }, graphed, between);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expect_same(actual[i], expected[i], "in step " + std::to_string(i));
    }
  }

  static at::Tensor draw() { return at::rand({5}, at::TensorOptions(device())); }
};
PIANOLA_ON_EVERY_DEVICE(RandomTest);

TEST_P(RandomTest, DropoutStepsEqualEager) {
  expect_replays_equal_eager([](int) {});
}

TEST_P(RandomTest, EagerDrawsBetweenReplaysTakeTheirPlaceInTheSequence) {
  expect_replays_equal_eager([](int step) {
    for (int i = 0; i < step % 3; ++i) draw();
  });
}

TEST_P(RandomTest, ReseedingBetweenReplaysIsSeen) {
  expect_replays_equal_eager([](int step) {
    if (step % 3 == 1) seed(100 + static_cast<std::uint64_t>(step));
  });
}

TEST_P(RandomTest, RewindingTheGeneratorRepeatsAReplay) {
  Training training(device(), 0.4);
  Graph graph(device());
  graph.capture([&] { training.forward(); });
  graph.replay();
  const at::Tensor state = state_of(generator());
  graph.replay();
  const at::Tensor output = training.output.clone(), after = state_of(generator());
  graph.replay();
  EXPECT_FALSE(same(training.output, output)) << "each replay draws anew";
  {
    at::Generator rewound = generator();
    const std::lock_guard lock(rewound.mutex());
    rewound.set_state(state);
  }
  graph.replay();
  EXPECT_TRUE(same(training.output, output));
  EXPECT_TRUE(same(state_of(generator()), after));
}

TEST_P(RandomTest, TwoGraphsDrawAlternatelyFromOneGenerator) {
  const std::vector<int> order = {0, 1, 1, 0, 0, 1, 0, 1};
  const auto make = [] {
    std::vector<Training> trainings;
    trainings.emplace_back(device(), 0.4, 1, 5);
    trainings.emplace_back(device(), 0.2, 3, 6);
    return trainings;
  };
  seed(11);
  std::vector<Training> eager = make();
  std::vector<NamedTensors> expected;
  for (const int i : order) {
    eager[i].step();
    expected.push_back(clone_all(eager[i].everything()));
    draw();
  }
  const at::Tensor generator_after = state_of(generator());

  seed(11);
  std::vector<Training> graphed = make();
  Graph first(device()), second(device());
  first.capture([&] { graphed[0].step(); });
  second.capture([&] { graphed[1].step(); });
  for (std::size_t step = 0; step < order.size(); ++step) {
    (order[step] == 0 ? first : second).replay();
    expect_same(graphed[order[step]].everything(), expected[step], "in step " + std::to_string(step));
    draw();
  }
  EXPECT_TRUE(same(state_of(generator()), generator_after));
}

TEST_P(RandomTest, AGraphThatDrawsNothingLeavesTheGeneratorAlone) {
  Training training(device());
  Graph graph(device());
  graph.capture([&] { training.step(); });
  const at::Tensor before = state_of(generator());
  graph.replay();
  EXPECT_TRUE(same(state_of(generator()), before));
  EXPECT_FALSE(graph.info().draws_random_numbers);
}

TEST_P(RandomTest, DrawsFromAGeneratorThatIsNamed) {
  at::Generator extra = generator().clone(), eager_extra = generator().clone();
  extra.set_current_seed(21);
  eager_extra.set_current_seed(21);
  const at::Tensor x = randn({64}), eager_x = randn({64});
  const at::Tensor before = state_of(extra);
  Graph graph(device());
  graph.capture([&] { x.add_(at::empty_like(x).uniform_(0, 1, extra)); }, {.generators = {extra}});
  EXPECT_TRUE(same(state_of(extra), before)) << "after capture";
  const at::Tensor others = state_of(generator());
  for (int step = 0; step < 5; ++step) {
    if (step == 3) {
      extra.set_current_seed(22);
      eager_extra.set_current_seed(22);
    }
    graph.replay();
    eager_x.add_(at::empty_like(eager_x).uniform_(0, 1, eager_extra));
    EXPECT_TRUE(same(x, eager_x)) << "step " << step;
    EXPECT_TRUE(same(state_of(extra), state_of(eager_extra))) << "step " << step;
  }
  EXPECT_TRUE(same(state_of(generator()), others)) << "the default generator does not move";
}

TEST_P(RandomTest, RefusesAGeneratorThatIsNotNamed) {
  at::Generator unknown = generator().clone();
  const at::Tensor x = randn({64});
  const at::Tensor before = x.clone();
  const at::Tensor state_before = state_of(unknown);
  Graph graph(device());
  for (const int warmup : {0, 2}) {
    EXPECT_THAT(refusal<CaptureError>(std::string("a generator that was not named, on ") + GetParam(),
                                      [&] { graph.capture([&] { x.uniform_(0, 1, unknown); }, {.warmup = warmup}); }),
                AllOf(HasSubstr("aten::uniform_ draws from a generator that the graph does not know"),
                      HasSubstr("random_test.cpp:"), HasSubstr("CaptureOptions::generators")));
    EXPECT_FALSE(graph.captured());
    EXPECT_TRUE(same(x, before));
    EXPECT_TRUE(same(state_of(unknown), state_before)) << "after " << warmup << " eager runs";
  }
  graph.capture([&] { x.uniform_(0, 1, unknown); }, {.warmup = 0, .generators = {unknown}});
  graph.replay();
  EXPECT_FALSE(same(x, before));
}

TEST_P(RandomTest, RefusesAGeneratorThatIsUndefined) {
  Graph graph(device());
  const at::Tensor x = randn({64});
  EXPECT_THAT(refusal<UsageError>("an undefined generator",
                                  [&] { graph.capture([&] { x.uniform_(); }, {.generators = {at::Generator()}}); }),
              HasSubstr("'generators' is undefined"));
}

}  // namespace
}  // namespace pianola::random_test
