// `graphed` and FullIteration are made of one cache: what it does, both do.
#include <pianola/callable/graphed.hpp>
#include <pianola/callable/testing/twins.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/training/full_iteration.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::iteration_cache_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::same;

class IterationCacheTest : public testing::CallableTest {
 protected:
  using Step = std::function<at::Tensor(const at::Tensor&)>;

  // One of the two, seen alike.
  struct Twin {
    std::string name;
    Step call;
    std::function<GraphedInfo()> info;
    std::function<void()> reset;
    std::vector<std::string> reasons = {};

    [[nodiscard]] SignatureInfo latest() const { return info().signatures.at(0); }
  };

  // Does with both what a test does with one; `make_step` is given the twin that the step becomes.
  static void on_both(int warmup, const std::function<Step(Twin&)>& make_step, const std::function<void(Twin&)>& test) {
    for (const bool is_graphed : {true, false}) {
      Twin twin{.name = is_graphed ? "graphed" : "FullIteration", .call = {}, .info = {}, .reset = {}};
      const auto tell = [&](const std::string& reason) { twin.reasons.push_back(reason); };
      const Step step = make_step(twin);
      Graphed graphed =
          pianola::graphed(step, {.warmup = warmup, .islands = IslandPolicy::marked, .on_fallback = tell});
      FullIteration iteration([&](const std::vector<c10::IValue>& one) { return step(one.at(0).toTensor()); },
                              {.warmup = warmup, .eager_fallback = true, .on_fallback = tell});
      if (is_graphed) {
        twin.call = [&](const at::Tensor& x) { return graphed(x); };
        twin.info = [&] { return graphed.info(); };
        twin.reset = [&] { graphed.reset(); };
      } else {
        twin.call = [&](const at::Tensor& x) { return iteration({x}).toTensor(); };
        twin.info = [&] { return as_graphed(iteration.info()); };
        twin.reset = [&] { iteration.reset(); };
      }
      SCOPED_TRACE(twin.name);
      const at::NoGradGuard no_grad;
      test(twin);
    }
  }

  static GraphedInfo as_graphed(const FullIterationInfo& info) {
    GraphedInfo result{.signatures = {}, .evictions = info.evictions};
    for (const IterationInfo& one : info.signatures) {
      result.signatures.push_back({.signature = one.signature,
                                   .state = one.state,
                                   .recaptures = one.recaptures,
                                   .replays = one.replays,
                                   .eager_calls = one.eager_calls,
                                   .reason = one.reason});
    }
    return result;
  }

  static at::Tensor batch(std::uint64_t seed, std::int64_t rows = 8) { return randn({rows, 12}, seed); }
};
PIANOLA_ON_EVERY_DEVICE(IterationCacheTest);

TEST_P(IterationCacheTest, WhyItWasCapturedAgainIsShown) {
  at::Tensor scale = torch::ones({}, device());
  const auto make_step = [&](Twin&) { return [&](const at::Tensor& x) { return x * scale; }; };
  on_both(1, make_step, [&](Twin& twin) {
    for (std::uint64_t call = 0; call < 8; ++call) {
      if (call == 4) scale = torch::full({}, 2.5, device());
      EXPECT_TRUE(same(twin.call(batch(call)), batch(call) * scale)) << call;
    }
    EXPECT_EQ(twin.latest().state, GraphedState::captured);
    EXPECT_EQ(twin.latest().recaptures, 1U);
    EXPECT_THAT(twin.latest().reason, HasSubstr("a Float tensor of shape [] that the function reads was replaced"));
    EXPECT_THAT(twin.reasons, IsEmpty());
  });
}

TEST_P(IterationCacheTest, RecapturesEndAfterAFewInARow) {
  at::Tensor scale = torch::ones({}, device());
  const auto make_step = [&](Twin&) { return [&](const at::Tensor& x) { return x * scale; }; };
  on_both(1, make_step, [&](Twin& twin) {
    for (std::uint64_t call = 0; call < 40; ++call) {
      if (call % 2 == 0) scale = torch::full({}, 0.1 * static_cast<double>(call), device());
      EXPECT_TRUE(same(twin.call(batch(call)), batch(call) * scale)) << call;
    }
    EXPECT_EQ(twin.latest().state, GraphedState::eager);
    EXPECT_THAT(twin.reasons, ElementsAre(AllOf(HasSubstr("s with Float[8, 12]"), HasSubstr("stay eager: "),
                                                HasSubstr("captured 9 times in a row, and is stale again"))));
  });
}

TEST_P(IterationCacheTest, AnObstacleIsToldInTheCallThatShowsIt) {
  const auto make_step = [](Twin&) {
    return [](const at::Tensor& x) { return x * (x.sum().item<float>() > 0 ? 2 : 3); };
  };
  on_both(4, make_step, [&](Twin& twin) {  // reads count in the last two of these calls
    std::vector<std::size_t> told;
    for (std::uint64_t call = 0; call < 6; ++call) {
      (void)twin.call(batch(call));
      told.push_back(twin.reasons.size());
    }
    EXPECT_THAT(told, ElementsAre(0U, 0U, 1U, 1U, 1U, 1U));
    EXPECT_THAT(twin.reasons, ElementsAre(HasSubstr("aten::item")));
    EXPECT_EQ(twin.latest().eager_calls, 6U);
  });
}

TEST_P(IterationCacheTest, RoomIsThatOfTheOneCalledLongestAgo) {
  const auto make_step = [](Twin&) { return [](const at::Tensor& x) { return x * 2; }; };
  on_both(1, make_step, [&](Twin& twin) {
    for (std::int64_t rows = 1; rows <= 40; ++rows) {
      for (int call = 0; call < 3; ++call) EXPECT_TRUE(same(twin.call(batch(1, rows)), batch(1, rows) * 2));
    }
    const GraphedInfo info = twin.info();
    EXPECT_EQ(info.signatures.size() + info.evictions, 40U);
    EXPECT_THAT(info.signatures.front().signature, HasSubstr("Float[40, 12]"));
  });
}

TEST_P(IterationCacheTest, AFunctionMayAskWhatIsKnownWhileItIsCaptured) {
  std::size_t seen = 0;
  const auto make_step = [&](Twin& twin) {
    return [&](const at::Tensor& x) {
      if (graph::capture_is_open()) seen += twin.info().signatures.size();
      return x * 2;
    };
  };
  on_both(1, make_step, [&](Twin& twin) {
    seen = 0;
    for (std::uint64_t call = 0; call < 4; ++call) EXPECT_TRUE(same(twin.call(batch(call)), batch(call) * 2));
    EXPECT_EQ(twin.latest().state, GraphedState::captured);
    EXPECT_GE(seen, 1U);
  });
}

TEST_P(IterationCacheTest, AFunctionMustNotResetWhileItIsCaptured) {
  const auto make_step = [&](Twin& twin) {
    return [&](const at::Tensor& x) {
      if (graph::capture_is_open()) twin.reset();
      return x * 2;
    };
  };
  on_both(1, make_step, [&](Twin& twin) {
    for (std::uint64_t call = 0; call < 4; ++call) EXPECT_TRUE(same(twin.call(batch(call)), batch(call) * 2));
    EXPECT_EQ(twin.latest().state, GraphedState::eager);
    EXPECT_THAT(twin.reasons, ElementsAre(HasSubstr("reset() was called")));
    twin.reset();
    EXPECT_THAT(twin.info().signatures, IsEmpty());
  });
}

}  // namespace
}  // namespace pianola::iteration_cache_test
