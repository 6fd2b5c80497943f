// All parts of a training run together: 50 iterations of four microbatches, with dropout, scaler, clipping and schedule.
#include <pianola/callable/testing/twins.hpp>
#include <pianola/training/adam.hpp>
#include <pianola/training/checkpoint.hpp>
#include <pianola/training/clip_grad.hpp>
#include <pianola/training/full_iteration.hpp>
#include <pianola/training/grad_scaler.hpp>
#include <pianola/training/learning_rate_schedule.hpp>
#include <pianola/training/rng_tracker.hpp>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace pianola::training_run_test {
namespace {

using testing::expect_same;
using testing::NamedTensors;
using testing::TransformerNet;

constexpr std::int64_t kSteps = 50;
constexpr std::size_t kMicrobatches = 4;
const std::set<std::int64_t> kInfiniteSteps = {11, 30};

class TrainingRunTest : public testing::CallableTest {
 protected:
  // Everything that one training run has, and one iteration of it.
  struct Run {
    Run() {
      tracker.add("rank", 42);
      checkpoint.add("model", named_parameters())
          .add("optimizer", optimizer)
          .add("scaler", scaler)
          .add("schedule", schedule);
      checkpoint.add("random", tracker).add_generator("generator", generator());
    }

    c10::IValue step(const std::vector<c10::IValue>& microbatches) {
      optimizer.zero_grad();
      at::Tensor total = torch::zeros({}, at::TensorOptions(device()));
      for (const c10::IValue& batch : microbatches) {
        const auto& parts = batch.toTupleRef().elements();  // input, and what its loss is multiplied with
        at::Tensor y = net->forward(parts[0].toTensor());
        {
          const auto fork = tracker.fork("rank");
          y = torch::dropout(y, 0.1, true);
        }
        const at::Tensor loss = y.square().mean() * parts[1].toTensor() / static_cast<double>(microbatches.size());
        scaler.scale(loss).backward();
        total = total + loss.detach();
      }
      scaler.unscale_(optimizer);
      const at::Tensor norm = clip_grad_norm_(optimizer, 0.5);
      scaler.step(optimizer);
      scaler.update();
      return c10::ivalue::Tuple::create({total, norm});
    }

    [[nodiscard]] std::vector<NamedTensor> named_parameters() const {
      std::vector<NamedTensor> named;
      for (const auto& item : net->named_parameters()) named.push_back({.name = item.key(), .tensor = item.value()});
      return named;
    }

    [[nodiscard]] NamedTensors everything() const {
      NamedTensors all;
      for (const auto& each : named_parameters()) all.emplace_back(each.name, each.tensor.detach().clone());
      for (const auto& each : optimizer.state()) all.emplace_back("optimizer " + each.name, each.tensor.clone());
      // What torch's checkpoint of a scaler has: not how many steps this process has skipped.
      all.emplace_back("scale", scaler.current_scale().clone());
      all.emplace_back("growth tracker", scaler.growth_tracker().clone());
      for (const auto& each : tracker.state()) all.emplace_back("random " + each.name, each.tensor.clone());
      all.emplace_back("learning rate", optimizer.learning_rate().clone());
      all.emplace_back("generator", state_of(generator()));
      return all;
    }

    std::shared_ptr<TransformerNet> net = make_net<TransformerNet>();
    AdamW optimizer{net->parameters(), {.lr = 1e-2}};
    GradScaler scaler{device(), {.init_scale = 1024, .growth_interval = 8}};
    LearningRateSchedule schedule{optimizer, LearningRate::warmup(5, LearningRate::cosine(kSteps - 5)), {1e-2}};
    RngTracker tracker{device()};
    Checkpoint checkpoint;
  };

  static std::vector<c10::IValue> batch(std::int64_t step) {
    std::vector<c10::IValue> microbatches;
    for (std::size_t i = 0; i < kMicrobatches; ++i) {
      const bool infinite = i == 2 && kInfiniteSteps.count(step) != 0;
      const at::Tensor factor =
          torch::full({}, infinite ? std::numeric_limits<float>::infinity() : 1.0F, at::TensorOptions(device()));
      const at::Tensor x = randn({2, 6, TransformerNet::kWidth}, static_cast<std::uint64_t>(step) * kMicrobatches + i);
      microbatches.emplace_back(c10::ivalue::Tuple::create({x, factor}));
    }
    return microbatches;
  }

  // Results and the whole state after each of the iterations [from, to).
  template <typename Iteration>
  static std::vector<NamedTensors> train(Run& run, Iteration&& iteration, std::int64_t from, std::int64_t to) {
    std::vector<NamedTensors> results;
    for (std::int64_t step = from; step < to; ++step) {
      const c10::IValue value = iteration(batch(step));
      const auto& result = value.toTupleRef().elements();
      NamedTensors now = {{"loss", result[0].toTensor().clone()}, {"norm", result[1].toTensor().clone()}};
      run.schedule.step();
      for (auto& each : run.everything()) now.push_back(std::move(each));
      results.push_back(std::move(now));
    }
    return results;
  }

  static std::vector<NamedTensors> train_eagerly(Run& run, std::int64_t to) {
    seed(9);
    return train(
        run, [&](const std::vector<c10::IValue>& one) { return run.step(one); }, 0, to);
  }

  static FullIteration full_iteration(Run& run) {
    return FullIteration([&run](const std::vector<c10::IValue>& one) { return run.step(one); },
                         {.generators = run.tracker.generators()});
  }

  // NaN equals NaN here: the norm of a step with an infinite gradient.
  static void expect_equal(const std::vector<NamedTensors>& actual, const std::vector<NamedTensors>& expected,
                           std::size_t from = 0) {
    ASSERT_EQ(actual.size() + from, expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      NamedTensors one = actual[i], other = expected[from + i];
      for (NamedTensors* each : {&one, &other}) {
        for (auto& [name, tensor] : *each) {
          if (tensor.is_floating_point()) tensor = tensor.nan_to_num(-1, 3e38, -3e38);
        }
      }
      expect_same(one, other, "after step " + std::to_string(from + i));
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(TrainingRunTest);

TEST_P(TrainingRunTest, FiftyIterationsEqualEager) {
  Run eager, graphed;
  const auto expected = train_eagerly(eager, kSteps);
  FullIteration iteration = full_iteration(graphed);
  seed(9);
  expect_equal(train(graphed, iteration, 0, kSteps), expected);
  EXPECT_EQ(iteration.info().signatures.at(0).replays, kSteps - 3);
  EXPECT_EQ(graphed.scaler.skipped_steps().item<std::int64_t>(), 2);
}

TEST_P(TrainingRunTest, GoesOnFromACheckpointWithANewGraphOrAnOldOne) {
  Run eager, first;
  const auto expected = train_eagerly(eager, kSteps);
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / "training_run.pt";
  {
    FullIteration iteration = full_iteration(first);
    seed(9);
    (void)train(first, iteration, 0, 20);
    first.checkpoint.save(file);
  }
  Run fresh;
  fresh.checkpoint.load(file);
  FullIteration captured_after = full_iteration(fresh);
  expect_equal(train(fresh, captured_after, 20, kSteps), expected, 20);

  Run other;
  FullIteration captured_before = full_iteration(other);
  (void)train(other, captured_before, 40, 46);
  other.checkpoint.load(file);
  expect_equal(train(other, captured_before, 20, kSteps), expected, 20);
  EXPECT_EQ(captured_before.info().signatures.at(0).recaptures, 0U);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace pianola::training_run_test
