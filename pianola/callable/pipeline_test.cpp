#include <pianola/callable/graphed_callable.hpp>
#include <pianola/core/error.hpp>
#include <pianola/schedule/buffer_plan.hpp>
#include <pianola/schedule/schedule.hpp>

#include <pianola/callable/testing/twins.hpp>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace pianola::pipeline_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::MlpNet;
using testing::NamedTensors;
using testing::refusal;
using testing::TransformerNet;

// A stage of a pipeline: chunks of layers, run in the order of a schedule, eagerly or graphed.
class PipelineTest : public testing::CallableTest {
 protected:
  using Layer = std::function<at::Tensor(const at::Tensor&)>;
  struct Stage {
    explicit Stage(const Schedule& schedule) {
      for (int layer = 0; layer < schedule.total_layers(); ++layer) {
        torch::manual_seed(20 + static_cast<std::uint64_t>(layer));
        nets.push_back(std::make_shared<TransformerNet>());
        nets.back()->to(device());
      }
    }
    [[nodiscard]] std::vector<Callable> callables() const { return std::vector<Callable>(nets.begin(), nets.end()); }
    [[nodiscard]] std::vector<Layer> layers() const {
      std::vector<Layer> result;
      for (const auto& net : nets) result.emplace_back([net](const at::Tensor& x) { return net->forward(x); });
      return result;
    }
    [[nodiscard]] NamedTensors state() const {
      NamedTensors all;
      for (const auto& net : nets) {
        for (const auto& tensor : state_of_module(*net)) all.push_back(tensor);
      }
      return all;
    }
    std::vector<std::shared_ptr<TransformerNet>> nets;
  };

  static at::Tensor input(std::uint64_t seed) { return randn({2, 8, 32}, seed).requires_grad_(); }

  // Other ranks' parts are played by fixed tensors: what comes in, and the gradient of what went out.
  // Eager layers have computed the gradients of weights by then.
  static NamedTensors run(
      const Schedule& schedule, const std::vector<Layer>& layers, std::uint64_t iteration,
      const std::function<void(int layer)>& weights = [](int) {}) {
    struct InFlight {
      at::Tensor input, output;
    };
    std::map<std::pair<int, int>, InFlight> in_flight;
    NamedTensors made;
    for (const ScheduleStep& step : schedule.steps()) {
      const auto number =
          1000 * iteration + 100 * static_cast<std::uint64_t>(step.chunk) + static_cast<std::uint64_t>(step.microbatch);
      const auto key = std::pair(step.chunk, step.microbatch);
      if (step.direction == Direction::forward) {
        const at::Tensor x = input(number);
        at::Tensor y = x;
        for (int i = 0; i < schedule.layers(step.chunk); ++i) {
          y = layers[static_cast<std::size_t>(schedule.first_layer(step.chunk) + i)](y);
        }
        in_flight[key] = {x, y};
        made.emplace_back(describe(step), y.clone());
      } else if (step.direction == Direction::backward) {
        const InFlight& one = in_flight.at(key);
        one.output.backward(randn({2, 8, 32}, number + 50));
        made.emplace_back(describe(step), one.input.grad());
        in_flight.erase(key);
      } else {
        for (int i = schedule.layers(step.chunk); i-- > 0;) weights(schedule.first_layer(step.chunk) + i);
      }
    }
    return made;
  }

  static std::vector<std::vector<c10::IValue>> samples(const Schedule& schedule) {
    return std::vector<std::vector<c10::IValue>>(static_cast<std::size_t>(schedule.total_layers()), {input(1)});
  }

  static void expect_runs_as_eager(const Schedule& schedule) {
    SCOPED_TRACE(schedule.to_string());
    const Stage eager(schedule), stage(schedule);
    auto graphed = make_graphed_callables(stage.callables(), samples(schedule), {.schedule = schedule});
    std::vector<Layer> layers;
    for (GraphedCallable& callable : graphed) {
      layers.emplace_back([&callable](const at::Tensor& x) { return callable(x); });
    }
    for (std::uint64_t iteration = 0; iteration < 3; ++iteration) {
      seed(iteration);
      const NamedTensors expected = run(schedule, eager.layers(), iteration);
      seed(iteration);
      const NamedTensors actual = run(schedule, layers, iteration, [&](int layer) {
        EXPECT_TRUE(graphed[static_cast<std::size_t>(layer)].backward_weights());
      });
      const std::string when = "in iteration " + std::to_string(iteration);
      expect_same(actual, expected, when);
      expect_same(stage.state(), eager.state(), when);
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(PipelineTest);

TEST_P(PipelineTest, InterleavedWithTwoChunksRunsAsEagerOnEveryRank) {
  for (const int microbatches : {2, 4, 6}) {
    for (const int rank : {0, 1}) {
      expect_runs_as_eager(
          Schedule::interleaved({.pipeline_size = 2, .virtual_size = 2, .microbatches = microbatches, .rank = rank}));
    }
  }
}

// Three microbatches are no multiple of the pipeline size, so that order is given by hand.
TEST_P(PipelineTest, TwoChunksAndThreeMicrobatchesRunAsEager) {
  expect_runs_as_eager(Schedule::parse("1,1,2,2,1,-2,2,-2,-1,-2,-1,-1"));
  expect_runs_as_eager(Schedule::parse("1,2,1,2,-2,-1,1,2,-2,-1,-2,-1"));
}

TEST_P(PipelineTest, UnevenChunksOfSeveralLayersRunAsEager) {
  expect_runs_as_eager(Schedule::parse("1,2,1,2,-2,-1,-2,-1", {.layers_per_chunk = {2, 1}}));
  expect_runs_as_eager(
      Schedule::one_f_one_b({.pipeline_size = 3, .microbatches = 5, .rank = 1}, {.layers_per_chunk = {3}}));
  expect_runs_as_eager(Schedule::gpipe({.pipeline_size = 2, .microbatches = 3}));
}

TEST_P(PipelineTest, DelayedWeightGradientsRunAsEager) {
  expect_runs_as_eager(Schedule::parse("1,1,-1,-1.5,1,-1,-1,-1.5,-1.5"));
  expect_runs_as_eager(Schedule::parse("1,2,1,2,-2,-1,-2,-1,-2.5,-1.5,-2.5,-1.5", {.layers_per_chunk = {2, 1}}));
  expect_runs_as_eager(Schedule::parse("1,1,2,2,1,-2,-2.5,2,-2,-1,-2,-1,-1,-2.5,-2.5"));  // of one chunk only
}

TEST_P(PipelineTest, DelayedWeightGradientsOutOfTurnAreRefused) {
  const Schedule schedule = Schedule::parse("1,1,-1,-1,-1.5,-1.5");
  const Stage stage(schedule);
  auto graphed = make_graphed_callables(stage.callables(), samples(schedule), {.schedule = schedule});
  const at::Tensor a = graphed[0](input(1)), b = graphed[0](input(2));
  a.sum().backward();
  EXPECT_THAT(refusal<ScheduleError>("weights out of order", [&] { (void)graphed[0].backward_weights(); }),
              AllOf(HasSubstr("expected backward of chunk 1, microbatch 2"),
                    HasSubstr("got weight gradients of chunk 1, microbatch 1")));
  b.sum().backward();
  EXPECT_THROW((void)graphed[0](input(3)), ScheduleError);
  EXPECT_TRUE(graphed[0].backward_weights());
  EXPECT_TRUE(graphed[0].backward_weights());
}

TEST_P(PipelineTest, AnIterationThatWasGivenUpTakesItsWeightGradientsWithIt) {
  const Schedule schedule = Schedule::parse("1,-1,-1.5");
  const Stage eager(schedule), stage(schedule);
  auto graphed = make_graphed_callables(stage.callables(), samples(schedule), {.schedule = schedule});
  graphed[0](input(1)).sum().backward();
  graphed[0].restart_schedule();
  for (const auto& one : {&eager, &stage}) one->nets[0]->zero_grad();
  seed(1);
  graphed[0](input(2)).sum().backward();
  EXPECT_TRUE(graphed[0].backward_weights());
  seed(1);
  eager.nets[0]->forward(input(2)).sum().backward();
  expect_same(stage.state(), eager.state());
}

TEST_P(PipelineTest, TheNumberOfGraphsFollowsTheDepthInFlight) {
  const auto bytes_and_graphs = [](int microbatches) {
    const auto schedule =
        Schedule::interleaved({.pipeline_size = 2, .virtual_size = 2, .microbatches = microbatches, .rank = 0});
    const Stage stage(schedule);
    auto graphed = make_graphed_callables(stage.callables(), samples(schedule), {.schedule = schedule});
    std::vector<std::size_t> result;
    for (int chunk = 1; chunk <= 2; ++chunk) {
      const CallableInfo info = graphed[static_cast<std::size_t>(chunk - 1)].info();
      EXPECT_EQ(info.graphs, 2U * static_cast<unsigned>(schedule.depth(chunk)));
      EXPECT_EQ(info.slots, static_cast<unsigned>(BufferPlan(schedule).slots(chunk)));
      result.insert(result.end(), {info.graphs, info.static_bytes, info.pool_bytes});
    }
    return result;
  };
  EXPECT_EQ(bytes_and_graphs(12), bytes_and_graphs(6));
}

// At each position of the schedule every call but the right one is refused, and the right one still works.
TEST_P(PipelineTest, EveryCallOutOfOrderIsRefused) {
  const Schedule schedule = Schedule::parse("1,2,1,2,-2,-1,-2,-1");
  const Stage stage(schedule);
  auto graphed = make_graphed_callables(stage.callables(), samples(schedule), {.schedule = schedule});
  std::map<std::pair<int, int>, at::Tensor> outputs;
  for (const ScheduleStep& step : schedule.steps()) {
    SCOPED_TRACE(describe(step));
    for (const int chunk : {1, 2}) {
      if (step.direction == Direction::forward && step.chunk == chunk) continue;
      EXPECT_THROW((void)graphed[static_cast<std::size_t>(chunk - 1)](input(1)), ScheduleError);
    }
    for (const auto& [key, output] : outputs) {
      if (step.direction == Direction::backward && key == std::pair(step.chunk, step.microbatch)) continue;
      EXPECT_THROW(output.backward(torch::ones_like(output), /*retain_graph=*/true), ScheduleError);
    }
    const auto key = std::pair(step.chunk, step.microbatch);
    if (step.direction == Direction::forward) {
      outputs[key] = graphed[static_cast<std::size_t>(step.chunk - 1)](input(1));
    } else {
      outputs.at(key).backward(torch::ones_like(outputs.at(key)));
      outputs.erase(key);
    }
  }
}

TEST_P(PipelineTest, ARefusalNamesWhatWasExpectedAndWhatCame) {
  const Schedule schedule = Schedule::parse("1,2,-2,-1,1,2,-2,-1", {.layers_per_chunk = {1, 2}});
  const Stage stage(schedule);
  auto graphed = make_graphed_callables(stage.callables(), samples(schedule), {.schedule = schedule});
  const std::string early = refusal<ScheduleError>("forward out of order", [&] { (void)graphed[1](input(1)); });
  EXPECT_THAT(early, AllOf(HasSubstr("expected forward of chunk 1, microbatch 1"),
                           HasSubstr("got forward of chunk 2, microbatch 1, layer 1"), HasSubstr("step 1 of 8")));
  const at::Tensor y = graphed[0](input(1));
  const std::string late = refusal<ScheduleError>("backward out of order", [&] { y.sum().backward(); });
  EXPECT_THAT(late, AllOf(HasSubstr("expected forward of chunk 2, microbatch 1, layer 1"),
                          HasSubstr("got backward of chunk 1, microbatch 1")));
  EXPECT_FALSE(stage.nets[0]->norm1->weight.grad().defined());
}

TEST_P(PipelineTest, AnIterationThatWasGivenUpCanBeRestarted) {
  const Schedule schedule = Schedule::parse("1,1,-1,-1");
  const Stage stage(schedule);
  auto graphed = make_graphed_callables(stage.callables(), samples(schedule), {.schedule = schedule});
  { const at::Tensor given_up = graphed[0](input(1)); }
  graphed[0].restart_schedule();
  const at::Tensor a = graphed[0](input(1)), b = graphed[0](input(2));
  a.sum().backward();
  b.sum().backward();
  const auto single = make_net<MlpNet>();
  GraphedCallable without = make_graphed_callable(single, {randn({8, 12})});
  EXPECT_THAT(refusal<UsageError>("restart without a schedule", [&] { without.restart_schedule(); }),
              HasSubstr("without a schedule"));
}

TEST_P(PipelineTest, EvaluationIsOutsideOfTheSchedule) {
  const Schedule schedule = Schedule::parse("1,1,-1,-1");
  const Stage eager(schedule), stage(schedule);
  auto graphed =
      make_graphed_callables(stage.callables(), samples(schedule), {.evaluation = true, .schedule = schedule});
  const at::Tensor y = graphed[0](input(1));
  for (const auto& one : {&eager, &stage}) one->nets[0]->eval();
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(testing::same(graphed[0](input(5)), eager.nets[0]->forward(input(5))));
  }
  for (const auto& one : {&eager, &stage}) one->nets[0]->train();
  const at::Tensor z = graphed[0](input(2));
  y.sum().backward();
  z.sum().backward();
}

TEST_P(PipelineTest, AModeThatIsCapturedLaterHasTheSlotsOfTheSchedule) {
  const Schedule schedule = Schedule::parse("1,1,1,-1,-1,-1");
  const Stage eager(schedule), stage(schedule);
  auto graphed = make_graphed_callables(stage.callables(), samples(schedule),
                                        {.on_other_mode = OnOtherMode::capture, .schedule = schedule});
  for (const auto& one : {&eager, &stage}) one->nets[0]->eval();  // with gradients
  const std::vector<Layer> layers = {[&](const at::Tensor& x) { return graphed[0](x); }};
  for (std::uint64_t iteration = 0; iteration < 2; ++iteration) {
    expect_same(run(schedule, layers, iteration), run(schedule, eager.layers(), iteration));
    expect_same(stage.state(), eager.state());
  }
}

TEST_P(PipelineTest, WrongCountsAreRefused) {
  const Schedule schedule = Schedule::parse("1,2,-2,-1", {.layers_per_chunk = {2, 1}});
  const Stage stage(schedule);
  const auto make = [&](std::size_t callables, std::size_t given, CallableOptions options) {
    std::vector<Callable> list = stage.callables();
    list.resize(callables, list.front());
    auto list_of_samples = samples(schedule);
    list_of_samples.resize(given);
    return [=] { (void)make_graphed_callables(list, list_of_samples, options); };
  };
  EXPECT_THAT(refusal<UsageError>("schedule and callables", make(2, 2, {.schedule = schedule})),
              AllOf(HasSubstr("3 layers in 2 chunks"), HasSubstr("2 callables")));
  EXPECT_THAT(refusal<UsageError>("schedule and samples", make(3, 2, {.schedule = schedule})),
              AllOf(HasSubstr("got 2 samples for 3 callables")));
  EXPECT_THAT(refusal<UsageError>("schedule and slots", make(3, 3, {.slots = 2, .schedule = schedule})),
              HasSubstr("which says how many each chunk needs"));
  EXPECT_THAT(refusal<UsageError>("schedule and delayed weights",
                                  make(3, 3, {.delay_weight_gradients = true, .schedule = schedule})),
              HasSubstr("which says which chunks delay them"));
  EXPECT_THAT(
      refusal<UsageError>("schedule and on_full", make(3, 3, {.on_full = OnFull::overtake, .schedule = schedule})),
      HasSubstr("which says whose turn it is"));
}

}  // namespace
}  // namespace pianola::pipeline_test
