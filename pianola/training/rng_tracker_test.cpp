#include <pianola/training/rng_tracker.hpp>

#include <pianola/graph/graph.hpp>
#include <pianola/trace/testing/device_test.hpp>

#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/stack.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pianola::rng_tracker_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::refusal;
using testing::same;

class RngTrackerTest : public testing::DeviceTest {
 protected:
  [[nodiscard]] static at::Tensor ones() { return at::ones({4, 8}, at::TensorOptions(device())); }

  // Dropout that all ranks share, then one of this rank's own.
  static at::Tensor step(RngTracker& tracker, const at::Tensor& x) {
    const at::Tensor shared = at::dropout(x, 0.5, true);
    const auto fork = tracker.fork("rank");
    return shared + 10 * at::dropout(x, 0.5, true);
  }

  // What a recomputation does: the first time, then once more from the same place, with other draws in between.
  static at::Tensor draw_twice(RngTracker& tracker, const at::Tensor& x, const std::function<at::Tensor()>& draw) {
    const RngTracker::Place place = tracker.place();
    const at::Tensor first = draw();
    const at::Tensor between = at::dropout(x, 0.5, true);
    at::Tensor second;
    {
      const RngTracker::Rewind rewind = tracker.rewind(place);
      second = draw();
    }
    return at::stack({first, second, between, at::dropout(x, 0.5, true)});
  }

  static NamedTensors states(const RngTracker& tracker) {
    NamedTensors states = {{"default", state_of(generator())}};
    for (const NamedTensor& one : tracker.state()) states.emplace_back(one.name, one.tensor);
    return states;
  }
};
PIANOLA_ON_EVERY_DEVICE(RngTrackerTest);

TEST_P(RngTrackerTest, AForkDrawsWhatAGeneratorOfThatSeedDraws) {
  RngTracker tracker(device());
  tracker.add("rank", 42);
  seed(42);
  const at::Tensor first = at::rand_like(ones()), second = at::rand_like(ones());
  seed(7);
  const at::Tensor before = state_of(generator());
  for (const at::Tensor& expected : {first, second}) {
    const auto fork = tracker.fork("rank");
    EXPECT_TRUE(same(at::rand_like(ones()), expected));
  }
  EXPECT_TRUE(same(state_of(generator()), before)) << "the default stream was not touched";
}

TEST_P(RngTrackerTest, ForksOfOtherStreamsMayStandInsideOneAnother) {
  RngTracker tracker(device()), apart(device());
  for (RngTracker* one : {&tracker, &apart}) {
    one->add("outer", 1);
    one->add("inner", 2);
  }
  const auto draw = [](RngTracker& from, const char* name) {
    const auto fork = from.fork(name);
    return at::rand_like(ones());
  };
  const at::Tensor first = draw(apart, "outer"), second = draw(apart, "outer"), inner = draw(apart, "inner");
  const auto fork = tracker.fork("outer");
  EXPECT_TRUE(same(at::rand_like(ones()), first));
  EXPECT_TRUE(same(draw(tracker, "inner"), inner));
  EXPECT_TRUE(same(at::rand_like(ones()), second));
}

TEST_P(RngTrackerTest, ReplaysDrawFromTheNamedStreamAsEagerDoes) {
  const at::Tensor x = ones();
  const auto run = [&](RngTracker& tracker, const std::function<at::Tensor()>& one_step) {
    seed(3);
    std::vector<NamedTensors> results;
    for (int i = 0; i < 5; ++i) {
      const at::Tensor y = one_step().clone();
      results.push_back(states(tracker));
      results.back().emplace_back("y", y);
    }
    return results;
  };
  RngTracker eager(device()), captured(device());
  for (RngTracker* tracker : {&eager, &captured}) tracker->add("rank", 42);
  const auto expected = run(eager, [&] { return step(eager, x); });

  Graph graph(device());
  at::Tensor y;
  graph.capture([&] { y = step(captured, x); }, {.generators = captured.generators()});
  const auto actual = run(captured, [&] {
    graph.replay();
    return y;
  });
  for (std::size_t i = 0; i < expected.size(); ++i) expect_same(actual[i], expected[i], "in step " + std::to_string(i));
}

TEST_P(RngTrackerTest, AStreamThatTheCaptureDoesNotKnowIsRefused) {
  RngTracker tracker(device());
  tracker.add("rank", 42);
  const at::Tensor x = ones();
  const NamedTensors before = states(tracker);
  Graph graph(device());
  const std::string message =
      refusal<CaptureError>("a fork that the capture does not know", [&] { graph.capture([&] { step(tracker, x); }); });
  EXPECT_THAT(message, AllOf(HasSubstr("'rank' is forked in a capture"), HasSubstr("CaptureOptions::generators")));
  expect_same(states(tracker), before, "after the refusal");
}

TEST_P(RngTrackerTest, AStepThatThrowsInAForkLeavesTheDefaultStream) {
  RngTracker tracker(device());
  tracker.add("rank", 42);
  const NamedTensors before = states(tracker);
  EXPECT_THROW(
      {
        const auto fork = tracker.fork("rank");
        throw std::runtime_error("in the fork");
      },
      std::runtime_error);
  expect_same(states(tracker), before);
}

TEST_P(RngTrackerTest, WhatWasSavedIsDrawnAgain) {
  RngTracker tracker(device());
  tracker.add("rank", 42);
  (void)step(tracker, ones());
  const c10::IValue saved = tracker.state_dict();
  const at::Tensor state = state_of(generator());
  const at::Tensor expected = step(tracker, ones());

  RngTracker loaded(device());
  loaded.load_state_dict(saved);
  EXPECT_THAT(loaded.names(), ElementsAre("rank"));
  {
    at::Generator chosen = generator();
    const std::lock_guard lock(chosen.mutex());
    chosen.set_state(state);
  }
  EXPECT_TRUE(same(step(loaded, ones()), expected));
}

TEST_P(RngTrackerTest, ARewindDrawsTheSameNumbersAndGoesBack) {
  const at::Tensor x = ones();
  const auto run = [&](bool twice) {
    RngTracker tracker(device());
    tracker.add("rank", 42);
    seed(3);
    const auto draw = [&] { return step(tracker, x); };
    at::Tensor drawn;
    if (twice) {
      drawn = draw_twice(tracker, x, draw);
      EXPECT_TRUE(same(drawn[0], drawn[1]));
    } else {
      const at::Tensor first = draw(), between = at::dropout(x, 0.5, true);
      drawn = at::stack({first, first, between, at::dropout(x, 0.5, true)});
    }
    NamedTensors left = states(tracker);
    left.emplace_back("drawn", drawn);
    return left;
  };
  expect_same(run(true), run(false));
}

TEST_P(RngTrackerTest, APlaceInAForkIsDrawnFromAgainOutsideOfIt) {
  const at::Tensor x = ones();
  RngTracker tracker(device());
  tracker.add("rank", 42);
  std::optional<RngTracker::Place> inside, outside = tracker.place();
  at::Tensor first;
  {
    const auto fork = tracker.fork("rank");
    inside = tracker.place();
    first = at::rand_like(x);
    // The other way round: a part that forks is done once more while the stream is forked.
    const RngTracker::Rewind rewind = tracker.rewind(*outside);
    const auto again = tracker.fork("rank");
    EXPECT_TRUE(same(at::rand_like(x), first));
  }
  const NamedTensors before = states(tracker);
  {
    const RngTracker::Rewind rewind = tracker.rewind(*inside);
    EXPECT_TRUE(same(at::rand_like(x), first));
  }
  expect_same(states(tracker), before);
}

TEST_P(RngTrackerTest, ReplaysDrawTheSameNumbersTwiceAsEagerDoes) {
  const at::Tensor x = ones();
  RngTracker eager(device()), captured(device());
  for (RngTracker* tracker : {&eager, &captured}) tracker->add("rank", 42);
  const auto one_step = [&](RngTracker& tracker) { return draw_twice(tracker, x, [&] { return step(tracker, x); }); };
  Graph graph(device());
  at::Tensor y;
  seed(3);
  graph.capture([&] { y = one_step(captured); }, {.generators = captured.generators()});
  std::vector<NamedTensors> expected;
  for (int i = 0; i < 5; ++i) {
    expected.push_back(states(eager));
    expected.back().emplace_back("drawn", one_step(eager));
  }
  seed(3);
  for (int i = 0; i < 5; ++i) {
    NamedTensors actual = states(captured);
    graph.replay();
    actual.emplace_back("drawn", y);
    expect_same(actual, expected[static_cast<std::size_t>(i)], "in step " + std::to_string(i));
  }
}

TEST_P(RngTrackerTest, RefusesAPlaceThatMeansNothing) {
  RngTracker tracker(device()), other(device());
  tracker.add("rank", 42);
  EXPECT_THAT(refusal<UsageError>("the place of another tracker", [&] { (void)tracker.rewind(other.place()); }),
              HasSubstr("that of another RngTracker"));
  const at::Tensor x = ones();
  const RngTracker::Place before = tracker.place();
  Graph graph(device());
  EXPECT_THAT(refusal<CaptureError>("a place that the capture does not know",
                                    [&] { graph.capture([&] { (void)tracker.place(), (void)x.add(1); }); }),
              AllOf(HasSubstr("'rank' is saved in a capture that does not know it"), HasSubstr("generators()")));
  EXPECT_THAT(refusal<CaptureError>("a rewind that the capture does not know",
                                    [&] { graph.capture([&] { (void)tracker.rewind(before), (void)x.add(1); }); }),
              HasSubstr("'rank' is set back in a capture that does not know it"));
  if (device().is_cpu()) return;  // the tape sets back to any place, also at replay
  const auto set_back = [&] {
    graph.capture([&] { (void)tracker.rewind(before), (void)x.add(1); }, {.generators = tracker.generators()});
  };
  EXPECT_THAT(refusal<CaptureError>("a place that was taken before the capture", set_back),
              AllOf(HasSubstr("taken in another capture, or in none"), HasSubstr("as one graph")));
}

TEST_P(RngTrackerTest, RefusesNamesAndSeedsThatDoNotFit) {
  RngTracker tracker(device());
  tracker.add("rank", 42);
  EXPECT_THAT(refusal<UsageError>("a random stream twice", [&] { tracker.add("rank", 1); }),
              AllOf(HasSubstr("there is a random stream 'rank' already"), HasSubstr("add each name once")));
  EXPECT_THAT(refusal<UsageError>("a seed twice", [&] { tracker.add("other", 42); }),
              AllOf(HasSubstr("seed 42 is that of random stream 'rank'"), HasSubstr("a seed of its own")));
  EXPECT_THAT(refusal<UsageError>("an unknown random stream", [&] { (void)tracker.fork("rnak"); }),
              AllOf(HasSubstr("no random stream 'rnak'; there are: rank"), HasSubstr("add() it first")));
  EXPECT_THAT(refusal<UsageError>("a fork in itself",
                                  [&] {
                                    const auto fork = tracker.fork("rank");
                                    (void)tracker.fork("rank");
                                  }),
              HasSubstr("forked already"));
  const auto fork = tracker.fork("rank");
  EXPECT_THAT(refusal<UsageError>("the state of a forked stream", [&] { (void)tracker.state_dict(); }),
              HasSubstr("state() was called while random stream 'rank' is forked"));
}

TEST_P(RngTrackerTest, RefusesAStateOfSomethingElse) {
  RngTracker tracker(device());
  tracker.add("rank", 42);
  const NamedTensors before = states(tracker);
  EXPECT_THAT(refusal<UsageError>("a random state that is no map", [&] { tracker.load_state_dict(3.0); }),
              HasSubstr("a map from names to tensors"));
  c10::Dict<std::string, at::Tensor> states_of_others;
  states_of_others.insert("other", state_of(generator()));
  EXPECT_THAT(refusal<UsageError>("a missing random state", [&] { tracker.load_state_dict(states_of_others); }),
              HasSubstr("no state of random stream 'rank'"));
  states_of_others.insert("rank", at::ones({3}));
  EXPECT_THAT(refusal<UsageError>("a random state of another kind", [&] { tracker.load_state_dict(states_of_others); }),
              HasSubstr("no state of a generator of"));
  expect_same(states(tracker), before);
}

}  // namespace
}  // namespace pianola::rng_tracker_test
