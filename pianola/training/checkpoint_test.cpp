#include <pianola/training/checkpoint.hpp>

#include <pianola/graph/graph.hpp>
#include <pianola/trace/testing/device_test.hpp>
#include <pianola/training/rng_tracker.hpp>

#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace pianola::checkpoint_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::refusal;

class CheckpointTest : public testing::DeviceTest {
 protected:
  void TearDown() override {
    if (!IsSkipped()) std::filesystem::remove(file());
    DeviceTest::TearDown();
  }
  [[nodiscard]] static std::filesystem::path file() {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    return std::filesystem::path(::testing::TempDir()) / (test.substr(0, test.find('/')) + ".pt");
  }

  // Something that is trained: two tensors, a random stream, the default generator.
  struct Run {
    Run()
        : weight(at::ones({4, 3}, at::TensorOptions(device()))),
          count(at::zeros({}, at::TensorOptions(device()).dtype(at::kLong))),
          tracker(device()) {
      tracker.add("rank", 7);
      checkpoint.add("model", tensors()).add("random", tracker).add_generator("generator", generator());
    }
    [[nodiscard]] std::vector<NamedTensor> tensors() const {
      return {{.name = "weight", .tensor = weight}, {.name = "count", .tensor = count}};
    }
    void step() {
      weight.add_(at::dropout(weight, 0.5, true));
      const auto fork = tracker.fork("rank");
      weight.sub_(at::dropout(weight, 0.25, true));
      count.add_(1);
    }
    [[nodiscard]] NamedTensors everything() const {
      return {{"weight", weight.clone()},
              {"count", count.clone()},
              {"rank", tracker.state().at(0).tensor},
              {"generator", state_of(generator())}};
    }
    at::Tensor weight, count;
    RngTracker tracker;
    Checkpoint checkpoint;
  };
};
PIANOLA_ON_EVERY_DEVICE(CheckpointTest);

TEST_P(CheckpointTest, WhatIsLoadedGoesOnAsWhatWasSaved) {
  Run first;
  for (int i = 0; i < 3; ++i) first.step();
  first.checkpoint.save(file());
  for (int i = 0; i < 4; ++i) first.step();
  const NamedTensors expected = first.everything();

  Run second;
  second.checkpoint.load(file());
  for (int i = 0; i < 4; ++i) second.step();
  expect_same(second.everything(), expected);
}

TEST_P(CheckpointTest, AGraphThatWasCapturedGoesOnWithWhatWasLoaded) {
  Run first;
  for (int i = 0; i < 3; ++i) first.step();
  first.checkpoint.save(file());
  for (int i = 0; i < 4; ++i) first.step();
  const NamedTensors expected = first.everything();

  Run second;
  Graph graph(device());
  graph.capture([&] { second.step(); }, {.generators = second.tracker.generators()});
  for (int i = 0; i < 2; ++i) graph.replay();
  second.checkpoint.load(file());
  for (int i = 0; i < 4; ++i) graph.replay();
  expect_same(second.everything(), expected);
}

TEST_P(CheckpointTest, AnotherModelIsRefusedAndNothingChanges) {
  Run first;
  first.step();
  first.checkpoint.save(file());
  Run second;
  second.step();
  second.step();
  const NamedTensors before = second.everything();
  // The first part is loaded already when the second one refuses.
  Checkpoint other;
  const at::Tensor wide = at::zeros({4, 5}, at::TensorOptions(device()));
  other.add("random", second.tracker).add_generator("generator", generator());
  other.add("model", {{.name = "weight", .tensor = wide}, {.name = "count", .tensor = second.count}});
  EXPECT_THAT(
      refusal<UsageError>("a checkpoint of another shape", [&] { other.load(file()); }),
      AllOf(HasSubstr("part 'model' of"), HasSubstr("'weight' is Float [4, 5], and Float [4, 3] in the checkpoint"),
            HasSubstr("load the checkpoint of the same model")));
  expect_same(second.everything(), before);

  Checkpoint renamed;
  renamed.add("random", second.tracker).add_generator("generator", generator());
  renamed.add("model", {{.name = "weights", .tensor = second.weight}, {.name = "count", .tensor = second.count}});
  EXPECT_THAT(refusal<UsageError>("a checkpoint of another name", [&] { renamed.load(file()); }),
              HasSubstr("'weights' is not in the checkpoint"));
  Checkpoint smaller;
  smaller.add("random", second.tracker).add_generator("generator", generator());
  smaller.add("model", {{.name = "weight", .tensor = second.weight}});
  EXPECT_THAT(refusal<UsageError>("a checkpoint of a larger model", [&] { smaller.load(file()); }),
              HasSubstr("'count' is in the checkpoint, and not here"));
  expect_same(second.everything(), before);
}

TEST_P(CheckpointTest, OtherPartsAreRefused) {
  Run run;
  run.checkpoint.save(file());
  Checkpoint other;
  other.add("model", run.tensors()).add("scaler", run.tensors());
  EXPECT_THAT(refusal<UsageError>("a checkpoint with other parts", [&] { other.load(file()); }),
              AllOf(HasSubstr("part 'scaler' is missing in it"), HasSubstr("its part 'random' is not here"),
                    HasSubstr("its part 'generator' is not here")));
  EXPECT_THAT(refusal<UsageError>("a part twice", [&] { other.add("model", run.tensors()); }),
              HasSubstr("has a part 'model' already"));
}

TEST_P(CheckpointTest, AFileThatIsNoCheckpointIsRefused) {
  Run run;
  const NamedTensors before = run.everything();
  EXPECT_THAT(refusal<UsageError>("no file", [&] { run.checkpoint.load("/no/such/none.pt"); }),
              HasSubstr("none.pt cannot be read"));
  run.checkpoint.save(file());
  std::filesystem::resize_file(file(), std::filesystem::file_size(file()) / 2);
  EXPECT_THAT(refusal<UsageError>("half a checkpoint", [&] { run.checkpoint.load(file()); }),
              HasSubstr(".pt is no checkpoint, or only a part of one"));
  EXPECT_THAT(refusal<UsageError>("no folder for a checkpoint", [&] { run.checkpoint.save("/no/such/folder.pt"); }),
              HasSubstr("folder.pt cannot be written"));
  expect_same(run.everything(), before);
}

}  // namespace
}  // namespace pianola::checkpoint_test
