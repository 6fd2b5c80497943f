// See Note [Inputs that a function keeps].
#include <pianola/callable/input_holders.hpp>
#include <pianola/callable/testing/graphed_fixture.hpp>
#include <pianola/trace/number_span.hpp>

#include <ATen/ops/mm.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pianola::kept_inputs_test {
namespace {

using callable::InputHolders;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::same;
using ::testing::SizeIs;

class KeptInputsTest : public testing::GraphedTest {
 protected:
  using Keep = std::function<void(at::Tensor& place, const at::Tensor& x)>;
  struct Way {
    const char* name;
    Keep keep;
  };
  static std::vector<Way> ways() {
    return {{"itself", [](at::Tensor& place, const at::Tensor& x) { place = x; }},
            {"a view", [](at::Tensor& place, const at::Tensor& x) { place = x.slice(0, 0, 2); }},
            {"its memory", [](at::Tensor& place, const at::Tensor& x) { place = x.variable_data(); }},
            {"as data", [](at::Tensor& place, const at::Tensor& x) {
               if (!place.defined()) place = at::empty({0}, x.options());
               place.set_data(x.variable_data());
             }}};
  }

  // Calls of two lengths in turn: what a call keeps is its own input, also after calls of the other length.
  void expect_kept_as_in_eager(const Keep& keep, const std::string& name) {
    at::Tensor place, of_eager;
    Graphed graphed = pianola::graphed(
        [&](const at::Tensor& x) {
          keep(place, x);
          return x * 2;
        },
        logged());
    for (std::uint64_t call = 0; call < 8; ++call) {
      for (const std::int64_t rows : {8, 5}) {
        const at::Tensor x = batches_.emplace_back(batch(call, rows));
        EXPECT_TRUE(same(graphed(x), x * 2)) << name;
        keep(of_eager, x.clone());
        EXPECT_TRUE(same(place, of_eager)) << name << ", call " << call << ", rows " << rows;
      }
    }
    EXPECT_EQ(replays(graphed), 0U) << name;
    EXPECT_THAT(reasons, AllOf(SizeIs(2U), Each(AllOf(HasSubstr("the function keeps input 0 beyond the call"),
                                                      HasSubstr("overwrite what is kept"), HasSubstr("PG802"),
                                                      HasSubstr("return it and keep what the call returns")))))
        << name;
    reasons.clear();
  }

  // Calls of two lengths in turn, after each of which what is kept has to be that call's; both stay eager, for what is `said`.
  void expect_eager_and_right(Graphed& graphed, const std::function<bool(const at::Tensor& x)>& is_kept,
                              const std::string& said, const std::string& name) {
    for (std::uint64_t call = 0; call < 8; ++call) {
      for (const std::int64_t rows : {8, 5}) {
        const at::Tensor x = batch(call, rows), loss = graphed(x);
        EXPECT_TRUE(is_kept(x)) << name << ", call " << call << ", rows " << rows;
      }
    }
    EXPECT_EQ(replays(graphed), 0U) << name;
    EXPECT_THAT(reasons, AllOf(SizeIs(2U), Each(AllOf(HasSubstr(said), HasSubstr("PG802"))))) << name;
    reasons.clear();
  }

 private:
  std::vector<at::Tensor> batches_;  // the caller's, who keeps them all
};
PIANOLA_ON_EVERY_DEVICE(KeptInputsTest);

TEST_P(KeptInputsTest, AFunctionThatKeepsItsInputStaysEager) {
  const at::NoGradGuard no_grad;
  for (const Way& way : ways()) expect_kept_as_in_eager(way.keep, way.name);
}

TEST_P(KeptInputsTest, SoItDoesWhereEachCallIsGivenTheSameTensor) {
  const at::Tensor x = batch(1);
  at::Tensor place;
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& given) {
        place = given;
        return given * 2;
      },
      logged());
  const at::NoGradGuard no_grad;
  for (int call = 0; call < 6; ++call) (void)graphed(x);
  EXPECT_TRUE(place.is_same(x));
  EXPECT_THAT(reasons, SizeIs(1U));
}

TEST_P(KeptInputsTest, AStepThatKeepsItsInputStaysEager) {
  at::Tensor weight = randn({12}, 7).requires_grad_(), place;
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        weight.mutable_grad().reset();
        place = x.detach();
        const at::Tensor loss = square(x * weight);
        loss.backward();
        return loss.detach();
      },
      logged());
  for (std::uint64_t call = 0; call < 8; ++call) {
    for (const std::int64_t rows : {8, 5}) {
      (void)graphed(batch(call, rows));
      EXPECT_TRUE(same(place, batch(call, rows))) << call;
    }
  }
  EXPECT_THAT(reasons, AllOf(SizeIs(2U), Each(HasSubstr("keeps input 0 beyond the call"))));
}

// Its backward pass has let go of what the history had saved.
TEST_P(KeptInputsTest, AStepThatReturnsItsLossWithItsHistoryStaysEagerAsWell) {
  for (const Way& way : ways()) {
    at::Tensor weight = randn({12}, 7).requires_grad_(), place;
    Graphed graphed = pianola::graphed(
        [&](const at::Tensor& x) {
          weight.mutable_grad().reset();
          const at::AutoGradMode no_grad(false);
          way.keep(place, x);
          const at::AutoGradMode grad(true);
          at::Tensor loss = square(x * weight);
          loss.backward();
          return loss;
        },
        logged());
    const auto is_kept = [&](const at::Tensor& x) {
      at::Tensor of_eager;
      way.keep(of_eager, x);
      return same(place, of_eager);
    };
    expect_eager_and_right(graphed, is_kept, "keeps input 0 beyond the call", way.name);
  }
}

TEST_P(KeptInputsTest, AParameterThatIsGivenEachInputKeepsItsStepEager) {
  for (const bool is_made : {false, true}) {
    const at::Tensor weight = randn({12}, 7);
    at::Tensor parameter = randn({8, 12}, 9).requires_grad_();
    Graphed graphed = pianola::graphed(
        [&](const at::Tensor& x) {
          parameter.mutable_grad().reset();
          parameter.set_data(is_made ? x * 2 : x.variable_data());
          at::Tensor loss = square(parameter * weight);
          loss.backward();
          return loss;
        },
        logged());
    const auto is_kept = [&](const at::Tensor& x) { return same(parameter.detach(), is_made ? x * 2 : x); };
    expect_eager_and_right(graphed, is_kept,
                           is_made ? "keeps a tensor that it made and does not return" : "keeps input 0",
                           is_made ? "made" : "given");
  }
}

// Its history leads to the leaf, which has the memory of an input, or what the step made.
TEST_P(KeptInputsTest, ALeafThatAStepDifferentiatesIsNothingToTell) {
  for (const bool is_made : {false, true}) {
    at::Tensor weight = randn({12}, 7).requires_grad_();
    const auto step = [&](const at::Tensor& x) {
      const at::Tensor leaf = (is_made ? x * 2 : x).detach().requires_grad_();
      at::Tensor loss = square(leaf * weight);
      weight.mutable_grad() = torch::autograd::grad({loss}, {weight, leaf})[0];
      return loss;
    };
    Graphed graphed = pianola::graphed(step, logged());
    at::Tensor loss;  // of the call before, while the next one runs
    for (std::uint64_t call = 0; call < 8; ++call) {
      loss = graphed(batch(call));
      const at::Tensor gradient = weight.grad().clone();
      EXPECT_TRUE(same(loss.detach(), step(batch(call)).detach())) << call;
      EXPECT_TRUE(same(gradient, weight.grad())) << call;
      weight.mutable_grad().reset();
    }
    EXPECT_THAT(reasons, IsEmpty()) << is_made;
    EXPECT_GT(replays(graphed), 0U) << is_made;
  }
}

// What their results' histories have saved is told from what the function keeps when the capture warms up.
TEST_P(KeptInputsTest, AFunctionWhoseBackwardPassComesLaterStaysEagerAsWell) {
  for (const Way& way : ways()) {
    const at::Tensor weight = randn({12}, 7).requires_grad_();
    at::Tensor place;
    Graphed graphed = pianola::graphed(
        [&](const at::Tensor& x) {
          const at::NoGradGuard no_grad;
          way.keep(place, x);
          const at::AutoGradMode grad(true);
          return x * weight;
        },
        logged());
    for (std::uint64_t call = 0; call < 8; ++call) {
      for (const std::int64_t rows : {8, 5}) {
        const at::Tensor x = batch(call, rows);
        square(graphed(x)).backward();
        at::Tensor of_eager;
        way.keep(of_eager, x);
        EXPECT_TRUE(same(place, of_eager)) << way.name << ", call " << call << ", rows " << rows;
      }
    }
    EXPECT_THAT(reasons, AllOf(SizeIs(2U), Each(HasSubstr("keeps input 0 beyond the call")))) << way.name;
    reasons.clear();
  }
}

// A cache that the first call fills.
TEST_P(KeptInputsTest, WhatTheFirstCallAloneKeepsIsNothingToTell) {
  at::Tensor first;
  const auto function = [&](const at::Tensor& x) {
    if (!first.defined()) first = x;
    return x * 2;
  };
  Graphed graphed = pianola::graphed(function, logged());
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 8; ++call) EXPECT_TRUE(same(graphed(batch(call)), batch(call) * 2));
  EXPECT_TRUE(same(first, batch(0)));
  EXPECT_THAT(reasons, IsEmpty());
  EXPECT_GT(replays(graphed), 0U);
}

TEST_P(KeptInputsTest, ResultsThatAreInputsAreTheCallersToKeep) {
  Graphed graphed = pianola::graphed(
      [](const at::Tensor& x) {
        return std::vector<at::Tensor>{x, x.slice(0, 0, 2), x * 2};
      },
      logged());
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> results;
  for (std::uint64_t call = 0; call < 8; ++call) {
    const at::Tensor x = batch(call);
    results.push_back(graphed.call({&x, 1}));
  }
  for (std::uint64_t call = 0; call < 8; ++call) EXPECT_TRUE(same(results[call][1], batch(call).slice(0, 0, 2)));
  EXPECT_THAT(reasons, IsEmpty());
  EXPECT_GT(replays(graphed), 0U);
}

// A view, and the history of a result that had to save it.
TEST_P(KeptInputsTest, WhatTheCallerKeepsBetweenCallsIsNothingToTell) {
  const at::Tensor x = batch(1), weight = randn({12}, 7).requires_grad_();
  std::vector<at::Tensor> kept;
  Graphed graphed = pianola::graphed([](const at::Tensor& given) { return given * 2; }, logged());
  for (int call = 0; call < 8; ++call) {
    {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(same(graphed(x), x * 2)) << call;
    }
    kept.push_back(x.slice(0, 0, 2));
    kept.push_back(x * weight);
  }
  EXPECT_THAT(reasons, IsEmpty());
  EXPECT_GT(replays(graphed), 0U);
}

// The run that a capture warms up with notes what looks at memory by it, and holds that.
TEST_P(KeptInputsTest, AViewByANumberThatIsFollowedIsNothingToTell) {
  const auto function = [](const at::Tensor& x) {
    const trace::NumberSpan by_a_number({0});
    return x.slice(0, 0, 2) * 2;
  };
  Graphed graphed = pianola::graphed(function, logged());
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 8; ++call) EXPECT_TRUE(same(graphed(batch(call)), function(batch(call)))) << call;
  EXPECT_THAT(reasons, IsEmpty());
  EXPECT_GT(replays(graphed), 0U);
}

// As attacks on a model make: the capture takes it for no parameter, which it would hold.
TEST_P(KeptInputsTest, ALeafInTheMemoryOfAnInputIsNothingToTell) {
  const at::Tensor weight = randn({12}, 7);
  const auto function = [&](const at::Tensor& x) {
    const at::Tensor leaf = x.detach().requires_grad_();
    const at::Tensor gradient = torch::autograd::grad({square(leaf * weight)}, {leaf})[0];
    return (leaf + gradient.sign()).detach();
  };
  Graphed graphed = pianola::graphed(function, logged());
  for (std::uint64_t call = 0; call < 8; ++call) EXPECT_TRUE(same(graphed(batch(call)), function(batch(call)))) << call;
  EXPECT_THAT(reasons, IsEmpty());
  EXPECT_GT(replays(graphed), 0U);
}

// It is kept by autocast until its region ends, with the leaf that was cast.
TEST_P(KeptInputsTest, ALeafWhoseCastAutocastKeepsIsNothingToTell) {
  const at::Tensor weight = randn({12, 12}, 7);
  const auto function = [&](const at::Tensor& x) { return at::mm(x, weight).detach(); };
  Graphed graphed = pianola::graphed(function, logged());
  for (std::uint64_t call = 0; call < 8; ++call) {
    const Autocast region;
    const at::Tensor x = batch(call).requires_grad_();
    const at::Tensor found = graphed(x);  // before anybody else has cast the leaf
    EXPECT_TRUE(same(found, function(x))) << call;
  }
  EXPECT_THAT(reasons, IsEmpty());
  EXPECT_GT(replays(graphed), 0U);
}

TEST_P(KeptInputsTest, WhoTakesReferencesAfterTheRunIsTheCaller) {
  const at::Tensor x = batch(1);
  InputHolders holders({&x, 1});
  holders.forget_free();
  const at::Tensor kept = x.slice(0, 0, 2);
  EXPECT_THAT(holders.positions(), IsEmpty());
  InputHolders later({&x, 1});
  later.go_on_from(holders);
  EXPECT_EQ(later.kept(), std::nullopt);
}

TEST_P(KeptInputsTest, TheCallerMayHoldWhatItPasses) {
  const at::Tensor x = batch(1);
  InputHolders holders({&x, 1});
  EXPECT_EQ(holders.kept(), std::nullopt);
  {
    const at::Tensor kept = x.slice(0, 0, 2);
    EXPECT_EQ(holders.kept(), std::optional<std::size_t>(0));
    InputHolders later({&x, 1});
    EXPECT_EQ(later.kept(), std::nullopt) << "it was held before";
    later.go_on_from(holders);
    EXPECT_EQ(later.kept(), std::optional<std::size_t>(0)) << "since a run that was given the same tensor";
  }
  EXPECT_EQ(holders.kept(), std::nullopt) << "let go of";
}

}  // namespace
}  // namespace pianola::kept_inputs_test
