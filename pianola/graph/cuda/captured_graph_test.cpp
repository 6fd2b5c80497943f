#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/no_more_memory.hpp>

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <vector>

namespace pianola::testing::captured_graph_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class CapturedGraphTest : public DeviceTest {};

class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

// torch allocates two words for a generator that no graph has drawn from yet, before the capture begins.
TEST_P(CapturedGraphTest, ACaptureThatHasNoMemoryToBeginLeavesNothingBehind) {
  at::Generator own = generator().clone();
  own.set_current_seed(7);
  const at::Tensor x = randn({64});
  const auto step = [&] { x.add_(at::empty_like(x).uniform_(0, 1, own)); };
  step();
  const at::Tensor before = x.clone();
  synchronize();

  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  Graph graph(device());
  {
    const NoMoreMemory none(0);
    std::vector<at::Tensor> all;  // of the blocks that torch has at hand
    try {
      for (;;) all.push_back(at::empty({1}, x.options()));
    } catch (const c10::OutOfMemoryError&) {
    }
    EXPECT_THAT([&] { graph.capture(step, {.warmup = 0, .generators = {own}}); },
                ThrowsMessage<std::exception>(HasSubstr("out of memory")));
  }
  EXPECT_THAT(warnings.texts, IsEmpty());
  EXPECT_TRUE(same(x, before));

  own.set_current_seed(7);
  graph.capture(step, {.generators = {own}});
  for (int replay = 0; replay < 3; ++replay) graph.replay();
  const at::Tensor replayed = x.clone();
  x.copy_(before);
  own.set_current_seed(7);
  for (int run = 0; run < 3; ++run) step();
  EXPECT_TRUE(same(replayed, x));
}

INSTANTIATE_TEST_SUITE_P(On, CapturedGraphTest, ::testing::Values("cuda"), device_name);

}  // namespace
}  // namespace pianola::testing::captured_graph_test
