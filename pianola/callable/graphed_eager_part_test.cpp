// Parts of a graphed function that stay eager: its replays run them.
#include <pianola/callable/testing/graphed_fixture.hpp>
#include <pianola/graph/eager.hpp>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace pianola::graphed_eager_part_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::same;
using ::testing::ThrowsMessage;

class GraphedEagerPartTest : public testing::GraphedTest {};
PIANOLA_ON_EVERY_DEVICE(GraphedEagerPartTest);

TEST_P(GraphedEagerPartTest, CannotResetItsFunctionAndCallsItEagerly) {
  std::function<void()> now;
  const EagerPart part = eager(
      [&](const std::vector<at::Tensor>& given) -> std::vector<at::Tensor> {
        if (now) std::exchange(now, nullptr)();
        return {given[0] * 3};
      },
      "the part");
  const auto step = [&](const at::Tensor& x) { return part({x + 1})[0].cumsum(0); };
  Graphed graphed = pianola::graphed(step, logged({.warmup = 1, .capacity = 1}));
  for (std::uint64_t call = 0; call < 6; ++call) EXPECT_TRUE(same(graphed(batch(call)), step(batch(call))));
  now = [&] {
    EXPECT_THAT([&] { graphed.reset(); },
                ThrowsMessage<UsageError>(HasSubstr("reset() was called by a part that stays eager")));
  };
  const auto replay_is_right = [&](std::uint64_t call) {
    const at::Tensor result = graphed(batch(call));  // by which `now` runs
    return same(result, step(batch(call)));
  };
  EXPECT_TRUE(replay_is_right(6));
  now = [&] {
    const at::Tensor other = batch(7).slice(0, 0, 3);  // whose graph would take the place of the one that runs
    for (int call = 0; call < 4; ++call) EXPECT_TRUE(same(graphed(other), step(other)));
  };
  EXPECT_TRUE(replay_is_right(8));
  EXPECT_EQ(latest(graphed).state, GraphedState::captured);
  EXPECT_THAT(reasons, IsEmpty());
}

}  // namespace
}  // namespace pianola::graphed_eager_part_test
