#include <pianola/graph/graph.hpp>

#include <pianola/core/out_of_memory_error.hpp>

#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pianola::refusal_test {
namespace {

using ::testing::AllOf;
using testing::clone_all;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::refusal;
using testing::same;
using testing::Training;

TEST(DeviceRefusalTest, NamesADeviceThatIsNotThere) {
  EXPECT_THAT(refusal<DeviceError>("a graph on cuda:99", [] { Graph graph(c10::Device("cuda:99")); }),
              ::testing::AnyOf(AllOf(HasSubstr("there is no device cuda:99"), HasSubstr("this machine has")),
                               AllOf(HasSubstr("there is no CUDA device"), HasSubstr("fix:")),
                               AllOf(HasSubstr("this build of Pianola has no CUDA"), HasSubstr("cuda:99"))));
  EXPECT_THROW(GraphPool(c10::Device("cuda:99")), DeviceError);
}

TEST(DeviceRefusalTest, NamesTheDevicesThatHaveABackend) {
  EXPECT_THAT(refusal<UnsupportedError>("a graph on meta", [] { Graph graph(c10::Device("meta")); }),
              AllOf(HasSubstr("'meta'"), HasSubstr("known are cuda and cpu")));
}

class RefusalTest : public testing::DeviceTest {
 protected:
  static std::string on(const std::string& title) { return title + ", on " + GetParam(); }

  // What a refusal or a throw must not disturb.
  static void expect_next_capture_works(Graph& graph) {
    EXPECT_FALSE(graph.captured());
    Training eager(device(), 0.2), graphed(device(), 0.2);
    graph.capture([&] { graphed.step(); });
    for (int step = 0; step < 2; ++step) {
      const at::Tensor state = state_of(generator());
      eager.step();
      {
        at::Generator rewound = generator();
        rewound.set_state(state);
      }
      graph.replay();
      expect_same(graphed.everything(), eager.everything(), "in the next capture");
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(RefusalTest);

TEST_P(RefusalTest, AnEmptyStep) {
  Graph graph(device());
  const at::Tensor x = randn({4, 4});
  EXPECT_THAT(refusal<CaptureError>(on("an empty step"), [&] { graph.capture([] {}); }),
              AllOf(HasSubstr("the step is empty"), HasSubstr("fix:")));
  EXPECT_THAT(refusal<CaptureError>(on("an empty step, trace off"), [&] { graph.capture([] {}, {.trace = false}); }),
              HasSubstr("the step is empty"));
  EXPECT_THAT(refusal<CaptureError>(on("a step of views"), [&] { graph.capture([&] { (void)x.t(); }); }),
              HasSubstr("empty"));
  expect_next_capture_works(graph);
}

TEST_P(RefusalTest, WarmupBelowZero) {
  Graph graph(device());
  EXPECT_THAT(refusal<UsageError>("warmup -1", [&] { graph.capture([] {}, {.warmup = -1}); }),
              HasSubstr("warmup must be 0 or more, got -1"));
  expect_next_capture_works(graph);
}

TEST_P(RefusalTest, UseBeforeCapture) {
  Graph graph(device());
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"replay()", [&] { graph.replay(); }},
      {"info()", [&] { (void)graph.info(); }},
      {"pool()", [&] { (void)graph.pool(); }},
      {"trace()", [&] { (void)graph.trace(); }},
      {"raw_graph()", [&] { (void)graph.raw_graph(); }},
      {"raw_executable()", [&] { (void)graph.raw_executable(); }},
      {"dump_dot()", [&] { graph.dump_dot("/tmp/never_written.dot"); }}};
  for (const auto& [name, call] : calls) {
    EXPECT_THAT(refusal<UsageError>(std::string(name) + " before capture", call),
                AllOf(HasSubstr(std::string(name) + " was called on a graph that holds no capture"),
                      HasSubstr("call capture() first")));
  }
  expect_next_capture_works(graph);
}

TEST_P(RefusalTest, ASecondCaptureIntoAFullGraph) {
  const at::Tensor x = randn({4});
  Graph graph(device());
  graph.capture([&] { x.mul_(2); });
  EXPECT_THAT(refusal<UsageError>("a second capture without reset()", [&] { graph.capture([&] { x.mul_(3); }); }),
              AllOf(HasSubstr("holds a capture already"), HasSubstr("reset()")));
  const at::Tensor expected = x * 2;
  graph.replay();
  EXPECT_TRUE(same(x, expected)) << "the first capture is still there";
}

TEST_P(RefusalTest, ANestedCapture) {
  const at::Tensor x = randn({4}), before = x.clone();
  for (const int throwing : {0, 1}) {  // in warm-up, in the capture
    Graph outer(device()), inner(device());
    int run = 0;
    EXPECT_THAT(refusal<UsageError>("a nested capture",
                                    [&] {
                                      outer.capture(
                                          [&] {
                                            x.mul_(2);
                                            if (run++ == throwing) inner.capture([&] { x.mul_(3); });
                                          },
                                          {.warmup = 1});
                                    }),
                AllOf(HasSubstr("a capture is open on this thread already"), HasSubstr("do not nest")));
    EXPECT_TRUE(same(x, before));
    EXPECT_FALSE(inner.captured());
    expect_next_capture_works(outer);
  }
}

TEST_P(RefusalTest, ACaptureInsideAnOpenScope) {
  const at::Tensor x = randn({4});
  Graph outer(device()), inner(device());
  CaptureScope scope(outer);
  x.mul_(2);
  EXPECT_THROW(inner.capture([&] { x.mul_(3); }), UsageError);
  scope.end();
  const at::Tensor expected = x * 2;
  outer.replay();
  EXPECT_TRUE(same(x, expected)) << "the outer capture goes on";
}

TEST_P(RefusalTest, AStreamThatCannotBeCaptured) {
  Graph graph(device());
  const at::Tensor x = randn({4});
#if PIANOLA_WITH_CUDA
  if (on_cuda()) {
    EXPECT_THAT(refusal<UsageError>(
                    "capture on the default stream",
                    [&] { graph.capture([&] { x.mul_(2); }, {.stream = c10::cuda::getDefaultCUDAStream().unwrap()}); }),
                AllOf(HasSubstr("the default stream"), HasSubstr("getStreamFromPool")));
    return expect_next_capture_works(graph);
  }
#endif
  const c10::Stream stream(c10::Stream::DEFAULT, c10::Device(c10::kCPU));
  EXPECT_THAT(
      refusal<UsageError>("a stream on the cpu", [&] { graph.capture([&] { x.mul_(2); }, {.stream = stream}); }),
      HasSubstr("the tape on cpu has none"));
  expect_next_capture_works(graph);
}

TEST_P(RefusalTest, ATensorOfAnotherDevice) {
  Graph graph(device());
  const at::Tensor x = randn({4});
  if (on_cuda()) {
    const at::Tensor host = at::ones({4});
    EXPECT_THAT(refusal<CaptureError>("a step on the cpu for a graph on cuda",
                                      [&] { graph.capture([&] { (void)(host * 2); }); }),
                AllOf(HasSubstr("none of them on cuda:0"), HasSubstr("move the model")));
    EXPECT_THAT(refusal<CaptureError>("a copy from pageable host memory on cuda",
                                      [&] { graph.capture([&] { x.copy_(host); }); }),
                AllOf(HasSubstr("aten::copy_ cannot run in a capture"), HasSubstr("pinned")));
  } else {
    const at::Tensor other = at::empty({4}, at::TensorOptions(c10::kMeta));
    EXPECT_THAT(refusal<CaptureError>("a tensor of another device on the cpu",
                                      [&] { graph.capture([&] { x.mul_(2), (void)other.mul(2); }); }),
                AllOf(HasSubstr("aten::mul"), HasSubstr("uses a tensor of another device than cpu"),
                      HasSubstr("refusal_test.cpp:"), HasSubstr("move the tensor")));
  }
  expect_next_capture_works(graph);
}

TEST_P(RefusalTest, ASparseTensorOnTheTape) {
  if (on_cuda()) GTEST_SKIP() << "a CUDA graph needs no place for it";
  Graph graph(device());
  const at::Tensor indices = at::ones({1, 1}, at::kLong), values = randn({1});
  EXPECT_THAT(
      refusal<CaptureError>("a sparse tensor on the cpu",
                            [&] { graph.capture([&] { (void)at::_sparse_coo_tensor_unsafe(indices, values, {4}); }); }),
      AllOf(HasSubstr("makes a sparse or opaque tensor"), HasSubstr("refusal_test.cpp:"), HasSubstr("dense")));
  expect_next_capture_works(graph);
}

struct OwnError : std::logic_error {
  using std::logic_error::logic_error;
};

TEST_P(RefusalTest, AnErrorOfTheUsersOwnReachesTheCallerUnchanged) {
  const OwnError* thrown_at = nullptr;
  for (const int throwing : {0, 1, 2}) {
    Training training(device(), 0.2);
    const NamedTensors before = clone_all(training.state());
    const at::Tensor generator_before = state_of(generator());
    Graph graph(device());
    int run = 0;
    try {
      graph.capture(
          [&] {
            training.step();
            if (run++ != throwing) return;
            std::exception_ptr error = std::make_exception_ptr(OwnError("the user's own"));
            try {
              std::rethrow_exception(error);
            } catch (const OwnError& own) {
              thrown_at = &own;
              throw;
            }
          },
          {.warmup = 2});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const OwnError& error) {
      EXPECT_EQ(&error, thrown_at) << "the same object";
      EXPECT_STREQ(error.what(), "the user's own");
    }
    expect_same(training.state(), before, "after the throw");
    EXPECT_TRUE(same(state_of(generator()), generator_before));
    expect_next_capture_works(graph);
  }
}

TEST_P(RefusalTest, AnErrorOfTorchThatTheStepMadeReachesTheCallerUnchanged) {
  for (const int warmup : {0, 1}) {
    Graph graph(device());
    const at::Tensor x = randn({4, 5});
    try {
      graph.capture([&] { (void)at::mm(x, x); }, {.warmup = warmup});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("mat1 and mat2 shapes cannot be multiplied"));
    }
    expect_next_capture_works(graph);
  }
}

TEST_P(RefusalTest, AnErrorThatTheStepCatchesItselfIsNone) {
  const at::Tensor x = randn({4, 5});
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] {
    try {
      y = at::mm(x, x);
    } catch (const c10::Error&) {
      y = x * 2;
    }
  });
  x.add_(1);
  graph.replay();
  EXPECT_TRUE(same(y, x * 2));
}

TEST_P(RefusalTest, OutOfMemoryWhileRecording) {
  Graph graph(device());
  const auto step = [&] { (void)at::empty({std::int64_t{1} << 48}, at::TensorOptions(device())); };
  if (on_cuda()) {
    EXPECT_THAT(refusal<OutOfMemoryError>("out of memory in a capture", [&] { graph.capture(step, {.warmup = 0}); }),
                AllOf(HasSubstr("ran out of memory at aten::empty"), HasSubstr("refusal_test.cpp:"),
                      HasSubstr("share one pool"), HasSubstr("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")));
  } else {
    EXPECT_THROW(graph.capture(step, {.warmup = 0}), c10::Error) << "torch's own says how much was asked for";
  }
  expect_next_capture_works(graph);
}

}  // namespace
}  // namespace pianola::refusal_test
