// See Note [Recurrent dropout of cuDNN]. On the CPU the dropout of recurrent layers is one operation as others, which
// follows the generator.
#include <pianola/graph/graph.hpp>

#include <pianola/graph/recurrent_dropout.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/ops/lstm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace pianola::recurrent_dropout_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;

/// Two layers with dropout between them, and a sequence for them.
class Lstm {
 public:
  static constexpr std::int64_t kWidth = 4;

  explicit Lstm(c10::Device device)
      : state_(2, at::zeros({2, 3, kWidth}, device)), x_(at::ones({5, 3, kWidth}, device)) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
    for (int layer = 0; layer < 2; ++layer) {
      for (int matrix = 0; matrix < 2; ++matrix) {
        weights_.push_back(at::randn({4 * kWidth, kWidth}, generator).to(device));
      }
    }
  }

  [[nodiscard]] at::Tensor operator()(double dropout = 0.5) const {
    return std::get<0>(at::lstm(x_, state_, weights_, /*has_biases=*/false, /*num_layers=*/2, dropout, /*train=*/true,
                                /*bidirectional=*/false, /*batch_first=*/false));
  }

 private:
  std::vector<at::Tensor> state_, weights_;
  at::Tensor x_;
};

class RecurrentDropoutTest : public testing::DeviceTest {
 protected:
  static constexpr std::size_t kRounds = 4;

  [[nodiscard]] static bool draws_from_a_state_of_its_own() { return device().is_cuda(); }

  static bool begins_anew(const std::function<void()>& run) {
    graph::RecurrentDropout dropout;
    const trace::OpStream watching({&dropout});
    run();
    return dropout.began_anew();
  }
};
PIANOLA_ON_EVERY_DEVICE(RecurrentDropoutTest);

TEST_P(RecurrentDropoutTest, ReplaysDrawAnewAndAsEagerWould) {
  const Lstm lstm(device());
  seed(1);
  std::vector<at::Tensor> expected;
  for (std::size_t round = 0; round <= kRounds; ++round) expected.push_back(lstm());
  EXPECT_FALSE(same(expected[0], expected[1]));

  seed(1);
  at::Tensor output = lstm();  // makes the state, where there is one
  Graph graph(device());
  graph.capture([&] { output = lstm(); }, {.warmup = 0});
  for (std::size_t round = 1; round <= kRounds; ++round) {
    graph.replay();
    EXPECT_TRUE(same(output, expected[round])) << round;
  }
}

TEST_P(RecurrentDropoutTest, AReplayAfterSeedingEqualsEagerOrIsRefused) {
  const Lstm lstm(device());
  at::Tensor output = lstm();
  Graph graph(device());
  graph.capture([&] { output = lstm(); });
  graph.replay();
  seed(7);
  const at::Tensor expected = lstm();  // from here on the state is another one
  for (const bool eager_began_anew : {true, false}) {
    if (!eager_began_anew || !draws_from_a_state_of_its_own()) seed(7);
    if (!draws_from_a_state_of_its_own()) {
      graph.replay();
      EXPECT_TRUE(same(output, expected));
      continue;
    }
    const at::Tensor place = state_of(generator());
    EXPECT_THAT(refusal<ReplayError>("recurrent dropout after a seed", [&] { graph.replay(); }),
                AllOf(HasSubstr("a generator was seeded or set since the capture"), HasSubstr("recurrent dropout"),
                      HasSubstr("nothing was launched")));
    EXPECT_TRUE(same(state_of(generator()), place)) << "asking moves no generator";
    if (!eager_began_anew) {
      EXPECT_TRUE(same(lstm(), expected)) << "asking keeps eager calls from nothing";
    }
  }
}

// The warm-up runs drop nothing, so that the state would begin in the recording: with lanes and a plan, in one that is dropped.
TEST_P(RecurrentDropoutTest, ARecordingThatWouldBeginTheStateIsRefusedAndLeavesNone) {
  const Lstm lstm(device());
  for (const bool planned_lanes : {false, true}) {
    seed(7);
    const at::Tensor expected = lstm();
    seed(7);
    int run = 0;
    at::Tensor output;
    CaptureOptions options{.warmup = 2, .parallel = {.self_check = false}, .accept_capture_path = true};
    if (planned_lanes) {
      options.branches = 4;
      options.plan_memory = true;
    }
    Graph graph(device());
    const auto capture = [&] { graph.capture([&] { output = lstm(++run <= 2 ? 0 : 0.5); }, options); };
    if (!draws_from_a_state_of_its_own()) {
      capture();
      continue;
    }
    EXPECT_THROW(capture(), CaptureError);
    EXPECT_EQ(run, 3) << "no second recording";
    EXPECT_FALSE(graph.captured());
    EXPECT_TRUE(begins_anew([&] { output = lstm(); })) << "an eager call makes a state of its own";
    EXPECT_TRUE(same(output, expected)) << "with the numbers that it would have without a capture";
    EXPECT_FALSE(begins_anew([&] { output = lstm(); })) << "which the next one goes on with";
  }
}

TEST_P(RecurrentDropoutTest, WithoutDropoutSeedingChangesNothing) {
  const Lstm lstm(device());
  at::Tensor output;
  Graph graph(device());
  graph.capture([&] { output = lstm(/*dropout=*/0); });
  seed(7);
  graph.replay();
  EXPECT_TRUE(same(output, lstm(0)));
}

}  // namespace
}  // namespace pianola::recurrent_dropout_test
