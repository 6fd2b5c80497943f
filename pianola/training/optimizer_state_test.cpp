#include <pianola/training/optimizer_state.hpp>

#include <pianola/training/adam.hpp>
#include <pianola/training/sgd.hpp>
#include <pianola/training/testing/optimizer_fixture.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <functional>
#include <memory>

namespace pianola::optimizer_state_test {
namespace {

using ::testing::AllOf;
using Dict = c10::impl::GenericDict;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::Problem;
using testing::refusal;
using testing::same;

class OptimizerStateTest : public testing::OptimizerTest {
 protected:
  static void train(Optimizer& optimizer, const Problem& problem, int steps, int without = -1) {
    for (int i = 0; i < steps; ++i) {
      optimizer.zero_grad();
      problem.backward(without);
      optimizer.step();
    }
  }

  static Dict state_in(const c10::IValue& all) { return all.toGenericDict().at("state").toGenericDict(); }
  static Dict group_in(const c10::IValue& all, std::size_t group = 0) {
    return all.toGenericDict().at("param_groups").toListRef()[group].toGenericDict();
  }

  // As a file would give it.
  static c10::IValue pickled(const c10::IValue& state) {
    return torch::jit::pickle_load(torch::jit::pickle_save(state));
  }

  static std::unique_ptr<AdamW> adam(const Problem& problem, bool amsgrad = false) {
    return std::make_unique<AdamW>(std::vector<ParameterGroup<AdamWOptions>>{
        {{problem.parameters[0], problem.parameters[1]}, {.lr = 0.1, .amsgrad = amsgrad}},
        {{problem.parameters[2], problem.parameters[3]}, {.lr = 0.2, .weight_decay = 0}}});
  }

  // That loading what `spoil` makes of an AdamW's state is refused, and changes nothing.
  static std::string refused(const std::string& title, const std::function<void(const c10::IValue&)>& spoil) {
    const Problem problem(device()), other(device());
    const auto saved = adam(problem), loading = adam(other);
    train(*saved, problem, 2);
    train(*loading, other, 1);
    const c10::IValue state = pickled(saved->state_dict());
    spoil(state);
    const auto before = testing::clone_all(all_of(*loading));
    const std::string message = refusal<UsageError>(title, [&] { loading->load_state_dict(state); });
    expect_same(all_of(*loading), before);
    EXPECT_THAT(message, AllOf(HasSubstr("cannot be loaded into AdamW"), HasSubstr("nothing was changed")));
    return message;
  }
};
PIANOLA_ON_EVERY_DEVICE(OptimizerStateTest);

TEST_P(OptimizerStateTest, HasTorchsLayout) {
  const Problem problem(device());
  const auto optimizer = adam(problem, /*amsgrad=*/true);
  train(*optimizer, problem, 3);
  const c10::IValue all = optimizer->state_dict();
  const Dict entry = state_in(all).at(1).toGenericDict();
  EXPECT_EQ(entry.size(), 4U);
  EXPECT_EQ(entry.at("step").toTensor().item<float>(), 3);
  EXPECT_TRUE(entry.contains("exp_avg") && entry.contains("exp_avg_sq") && entry.contains("max_exp_avg_sq"));
  const Dict group = group_in(all, 1);
  EXPECT_TRUE(group.at("lr").toTensor().is_same(optimizer->learning_rate(1)));
  EXPECT_EQ(group.at("betas").toTupleRef().elements()[1].toDouble(), 0.999);
  EXPECT_TRUE(group.at("fused").toBool() && group.at("capturable").toBool() && group.at("foreach").isNone());
  EXPECT_EQ(group.at("params").toListRef()[1].toInt(), 3);
}

TEST_P(OptimizerStateTest, GoesOnAfterARoundTrip) {
  const auto expect_goes_on = [](const std::function<std::unique_ptr<Optimizer>(const Problem&)>& make) {
    const Problem problem(device()), other(device());
    const auto saved = make(problem), loaded = make(other);
    train(*saved, problem, 3);
    saved->set_learning_rate(0.05);
    train(*loaded, other, 1);  // to be overwritten
    loaded->load_state_dict(pickled(saved->state_dict()));
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 4; ++i) other.parameters[i].copy_(problem.parameters[i]);
    const at::AutoGradMode grad(true);
    expect_same(all_of(*loaded), all_of(*saved));
    train(*saved, problem, 2);
    train(*loaded, other, 2);
    expect_same(all_of(*loaded), all_of(*saved));
  };
  expect_goes_on([](const Problem& problem) { return adam(problem, true); });
  expect_goes_on([](const Problem& problem) { return std::make_unique<SGD>(problem.parameters); });
  expect_goes_on([](const Problem& problem) {
    return std::make_unique<SGD>(problem.parameters, SGDOptions{.momentum = 0.9, .dampening = 0.5});
  });
  expect_goes_on([](const Problem& problem) {
    return std::make_unique<AdamW>(problem.parameters, AdamWOptions{.scheduled_weight_decay = true});
  });
}

TEST_P(OptimizerStateTest, IsFollowedByWhatWasCaptured) {
  const Problem problem(device()), other(device());
  const auto saved = adam(problem), captured = adam(other);
  train(*saved, problem, 3);
  Graph graph(device());
  graph.capture([&] { train(*captured, other, 1); });
  graph.replay();
  captured->load_state_dict(saved->state_dict());
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 4; ++i) other.parameters[i].copy_(problem.parameters[i]);
  }
  train(*saved, problem, 1);
  graph.replay();
  expect_same(all_of(*captured), all_of(*saved));
}

TEST_P(OptimizerStateTest, StartsAnewWhereAnEntryIsMissing) {
  const Problem problem(device());
  const auto optimizer = adam(problem);
  const c10::IValue state = pickled(optimizer->state_dict());
  (void)state_in(state).erase(2);
  train(*optimizer, problem, 2);
  optimizer->load_state_dict(state);
  EXPECT_EQ(state_in(optimizer->state_dict()).at(2).toGenericDict().at("step").toTensor().item<float>(), 0);
}

TEST_P(OptimizerStateTest, LeavesOutADampenedSumThatHasNotBegun) {
  const Problem problem(device());
  SGD sgd(problem.parameters, {.momentum = 0.9, .dampening = 0.5});
  EXPECT_TRUE(state_in(sgd.state_dict()).empty());
  const c10::IValue fresh = pickled(sgd.state_dict());
  train(sgd, problem, 1);
  EXPECT_EQ(state_in(sgd.state_dict()).size(), 4U);
  const c10::IValue begun = pickled(sgd.state_dict());
  sgd.load_state_dict(fresh);
  EXPECT_TRUE(state_in(sgd.state_dict()).empty()) << "its next step is the first again";
  (void)state_in(begun).erase(1);
  EXPECT_THAT(refusal<UsageError>("dampened state in part", [&] { sgd.load_state_dict(begun); }),
              AllOf(HasSubstr("3 of 4 in group 0 have"), HasSubstr("nothing was changed")));
}

TEST_P(OptimizerStateTest, TakesNumbersForTensors) {
  const Problem problem(device());
  const auto optimizer = adam(problem);
  const c10::IValue state = pickled(optimizer->state_dict());
  group_in(state).insert_or_assign("lr", 0.5);
  state_in(state).at(0).toGenericDict().insert_or_assign("step", 7);
  optimizer->load_state_dict(state);
  EXPECT_EQ(optimizer->learning_rate(0).item<float>(), 0.5F);
  EXPECT_EQ(state_in(optimizer->state_dict()).at(0).toGenericDict().at("step").toTensor().item<float>(), 7);
}

TEST_P(OptimizerStateTest, IsRefusedWhereTheLayoutIsAnother) {
  EXPECT_THAT(refused("a state without groups",
                      [](const c10::IValue& all) { (void)all.toGenericDict().erase("param_groups"); }),
              HasSubstr("the state lacks 'param_groups'"));
  EXPECT_THAT(refused("a state that is no dict",
                      [](const c10::IValue& all) { all.toGenericDict().insert_or_assign("state", 3); }),
              HasSubstr("state must be a dict, got 3"));
  EXPECT_THAT(refused("a group too few",
                      [](const c10::IValue& all) { all.toGenericDict().at("param_groups").toList().pop_back(); }),
              HasSubstr("it has 1 parameter groups, the optimizer 2"));
  EXPECT_THAT(
      refused("a parameter too few", [](const c10::IValue& all) { group_in(all, 1).at("params").toList().pop_back(); }),
      HasSubstr("param_groups[1] has 1 parameters, the optimizer's group 2"));
  EXPECT_THAT(refused("a parameter twice in a state",
                      [](const c10::IValue& all) { group_in(all, 1).at("params").toList().set(0, 1); }),
              HasSubstr("param_groups[1]['params'] names 1 a second time"));
  EXPECT_THAT(
      refused("an entry of nobody", [](const c10::IValue& all) { state_in(all).insert(9, state_in(all).at(0)); }),
      HasSubstr("state[9] is of a parameter that no group names"));
}

TEST_P(OptimizerStateTest, IsRefusedWhereOptionsDiffer) {
  EXPECT_THAT(refused("another eps", [](const c10::IValue& all) { group_in(all).insert_or_assign("eps", 1e-6); }),
              AllOf(HasSubstr("param_groups[0]['eps'] is 1e-06, the optimizer's is 1e-08"),
                    HasSubstr("construct the optimizer with the options of the state")));
  EXPECT_THAT(
      refused("other betas",
              [](const c10::IValue& all) { group_in(all).insert_or_assign("betas", std::make_tuple(0.5, 0.9)); }),
      HasSubstr("['betas'] is (0.5, 0.9), the optimizer's is (0.9, 0.999)"));
  EXPECT_THAT(refused("Adam's state",
                      [](const c10::IValue& all) { group_in(all).insert_or_assign("decoupled_weight_decay", false); }),
              HasSubstr("['decoupled_weight_decay']"));
  EXPECT_THAT(refused("SGD's state", [](const c10::IValue& all) { (void)group_in(all).erase("betas"); }),
              HasSubstr("param_groups[0] lacks 'betas'"));
  EXPECT_THAT(refused("a negative rate in a state",
                      [](const c10::IValue& all) { group_in(all).insert_or_assign("lr", at::full({}, -1)); }),
              HasSubstr("['lr'] must be a finite number of 0 or more, got -1"));
}

TEST_P(OptimizerStateTest, IsRefusedWhereValuesDoNotFit) {
  const auto entry = [](const c10::IValue& all) { return state_in(all).at(0).toGenericDict(); };
  EXPECT_THAT(refused("another shape",
                      [&](const c10::IValue& all) {
                        entry(all).insert_or_assign("exp_avg", at::ones({2, 5}));
                      }),
              AllOf(HasSubstr("state[0]['exp_avg'] is a tensor Float [2, 5]"),
                    HasSubstr("the optimizer's is a tensor Float [5, 2]")));
  EXPECT_THAT(refused("a moment less", [&](const c10::IValue& all) { (void)entry(all).erase("exp_avg_sq"); }),
              HasSubstr("state[0] lacks 'exp_avg_sq'"));
  EXPECT_THAT(refused("a moment more",
                      [&](const c10::IValue& all) {
                        entry(all).insert("max_exp_avg_sq", at::ones({5, 2}));
                      }),
              HasSubstr("state[0] holds max_exp_avg_sq, which has no meaning for this optimizer"));
  EXPECT_THAT(refused("a word for a moment",
                      [&](const c10::IValue& all) { entry(all).insert_or_assign("exp_avg", std::string("none")); }),
              HasSubstr("state[0]['exp_avg'] must be a tensor, got none"));
  EXPECT_THAT(refused("a negative step", [&](const c10::IValue& all) { entry(all).insert_or_assign("step", -1); }),
              HasSubstr("state[0]['step']"));
}

}  // namespace
}  // namespace pianola::optimizer_state_test
