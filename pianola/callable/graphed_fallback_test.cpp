// What cannot be captured runs eagerly, and says why, once.
#include <pianola/callable/testing/graphed_fixture.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/torch_abi/assigned_number.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pianola::graphed_fallback_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::expect_same;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MlpNet;
using testing::refusal;
using testing::same;

class GraphedFallbackTest : public testing::GraphedTest {
 protected:
  using Function = std::function<at::Tensor(const at::Tensor&)>;

  // The function is called until long after it would be captured; each result is that of `expected`.
  Graphed expect_eager(const Function& function, const Function& expected, const std::string& reason,
                       GraphedOptions options = {}) {
    Graphed graphed = pianola::graphed(function, logged(std::move(options)));
    for (std::uint64_t call = 0; call < 8; ++call) {
      EXPECT_TRUE(same(graphed(batch(call)), expected(batch(call)))) << call;
    }
    EXPECT_THAT(reasons, ElementsAre(AllOf(HasSubstr("stay eager: "), HasSubstr(reason))));
    EXPECT_EQ(latest(graphed).state, GraphedState::eager);
    EXPECT_THAT(latest(graphed).reason, HasSubstr(reason));
    EXPECT_EQ(latest(graphed).eager_calls, 8U);
    return graphed;
  }
};
PIANOLA_ON_EVERY_DEVICE(GraphedFallbackTest);

TEST_P(GraphedFallbackTest, AHostReadIsNamedOnce) {
  const auto scaled = [](const at::Tensor& x) { return x * (x.sum().item<float>() > 0 ? 2 : 3); };
  (void)expect_eager(scaled, scaled, "aten::item returns a value of a tensor to the host");
}

TEST_P(GraphedFallbackTest, WarnsWhereNobodyListens) {
  const auto scaled = [](const at::Tensor& x) { return x * x.sum().item<float>(); };
  Graphed graphed = pianola::graphed(scaled, {.warmup = 1});
  class Warnings final : public c10::WarningHandler {
   public:
    void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
    std::vector<std::string> texts;
  } warnings;
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    for (std::uint64_t call = 0; call < 6; ++call) (void)graphed(batch(call));
  }
  EXPECT_THAT(warnings.texts, ElementsAre(AllOf(HasSubstr("pianola::graphed: calls with "), HasSubstr("aten::item"))));
}

TEST_P(GraphedFallbackTest, AnInputWrittenInPlaceIsTheCallersOwn) {
  const auto add = [](const at::Tensor& x) {
    x.add_(1);
    return x * 2;
  };
  (void)expect_eager(add, add, "writes input 0 in place");
  Graphed graphed = pianola::graphed(add);
  for (std::uint64_t call = 0; call < 5; ++call) {
    const at::Tensor x = batch(call);
    (void)graphed(x);
    EXPECT_TRUE(same(x, batch(call) + 1)) << call;
  }
}

TEST_P(GraphedFallbackTest, AStepThatWritesItsInputInPlace) {
  const auto net = make_net<MlpNet>();
  const auto step = [net](const at::Tensor& x) {
    net->zero_grad();
    x.mul_(0.5);
    const at::Tensor loss = square(net->forward(x));
    loss.backward();
    return loss.detach();
  };
  (void)expect_eager(step, step, "the step writes input 0 in place; the caller's tensor would not change");
}

TEST_P(GraphedFallbackTest, AStepWhoseInputRequiresGrad) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(
      [net](const at::Tensor& x) {
        const at::Tensor loss = square(net->forward(x));
        loss.backward();
        return loss;
      },
      logged());
  for (std::uint64_t call = 0; call < 5; ++call) {
    const at::Tensor x = batch(call).requires_grad_();
    (void)graphed(x);
    EXPECT_TRUE(x.grad().defined());
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("input 0 requires grad; the step would leave its gradient in a copy")));
}

TEST_P(GraphedFallbackTest, SparseInputs) {
  Graphed graphed = pianola::graphed([](const at::Tensor& x) { return x.to_dense() * 2; }, logged());
  Graphed step = pianola::graphed([](const at::Tensor& x) { (void)(x.to_dense() * 2); }, logged());
  for (std::uint64_t call = 0; call < 6; ++call) {
    const at::Tensor x = batch(call).relu();
    EXPECT_TRUE(same(graphed(x.to_sparse()), x * 2));
    (void)step.call({{x.to_sparse()}});
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("input 0 is a sparse tensor, whose size a graph cannot follow"),
                                   HasSubstr("input 0 is a sparse tensor, whose size a graph cannot follow")));
}

TEST_P(GraphedFallbackTest, AStepOnTensorsOfSeveralDevices) {
  if (!on_cuda()) GTEST_SKIP() << "there is one device only";
  const at::Tensor state = torch::zeros({8, 12}, device());
  Graphed graphed = pianola::graphed([&](const at::Tensor& x, const at::Tensor& scale) { state.add_(x * scale); },
                                     logged({.warmup = 1}));
  for (std::uint64_t call = 0; call < 3; ++call) (void)graphed.call({{batch(call), torch::ones({})}});
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("input 1 is on cpu, but the function computes on cuda:0")));
}

// torch's Adam of the C++ interface counts its steps on the host.
TEST_P(GraphedFallbackTest, ANumberThatChangesFromCallToCall) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  const auto make = [](const std::shared_ptr<MlpNet>& module) {
    const auto adam = std::make_shared<torch::optim::Adam>(module->parameters());
    return [module, adam](const at::Tensor& x) {
      adam->zero_grad();
      const at::Tensor loss = square(module->forward(x));
      loss.backward();
      adam->step();
      return loss;
    };
  };
  (void)expect_eager(make(net), make(eager), "a graph would repeat the last one for ever");
  EXPECT_THAT(reasons[0],
              AllOf(HasSubstr("was given"), HasSubstr("in one call and"), HasSubstr("pianola::step(optimizer)")));
  expect_same_state(*net, *eager);
}

TEST_P(GraphedFallbackTest, ANumberThatChangesBeforeTheCapture) {
  double scale = 1;
  const at::Tensor state = torch::zeros({8, 12}, device());
  Graphed function = pianola::graphed([&](const at::Tensor& x) { return x * scale; }, logged({.warmup = 1}));
  const auto as_tensor = [&] {  // as Python hands over numbers
    const at::Tensor number = c10::scalar_to_tensor(scale);
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  };
  Graphed other = pianola::graphed([&](const at::Tensor& x) { return at::add(x, as_tensor()); }, logged({.warmup = 1}));
  Graphed step = pianola::graphed([&](const at::Tensor& x) { state.add_(x, scale); }, logged({.warmup = 1}));
  for (std::uint64_t call = 0; call < 4; ++call) {
    scale += 1;
    EXPECT_TRUE(same(function(batch(call)), batch(call) * scale));
    EXPECT_TRUE(same(other(batch(call)), batch(call) + scale));
    const at::Tensor expected = state.add(batch(call), scale);
    (void)step.call({{batch(call)}});
    EXPECT_TRUE(same(state, expected));
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("was given 3 in one call and 4 in the next"),
                                   HasSubstr("aten::add.Tensor was given 3 in one call and 4 in the next"),
                                   HasSubstr("aten::add_.Tensor was given 3 in one call and 4 in the next")));
}

TEST_P(GraphedFallbackTest, ANumberAssignedByIndexThatChanges) {
  double number = 1;
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        at::Tensor y = x * 2;
        y.index_put_({torch::indexing::Ellipsis, 0}, number);
        return y;
      },
      logged({.warmup = 1}));
  for (std::uint64_t call = 0; call < 4; ++call) {
    number += 1;
    at::Tensor expected = batch(call) * 2;
    expected.select(-1, 0).fill_(number);
    EXPECT_TRUE(same(graphed(batch(call)), expected));
  }
  const std::string fill = torch_abi::kAssignsNumbersAsTensors<> ? "aten::fill_.Tensor" : "aten::fill_.Scalar";
  EXPECT_THAT(reasons,
              ElementsAre(AllOf(HasSubstr(fill + " was given 3 in one call and 4 in the next"), HasSubstr("[PG301]"))));
}

// Its value may be another one whenever a replay looks.
TEST_P(GraphedFallbackTest, ANumberInMemoryOfTheHost) {
  const auto memory = std::make_shared<float>(1.0F);
  const auto scaled = [&](const at::Tensor& x) { return x * torch::from_blob(memory.get(), {}); };
  (void)expect_eager(scaled, scaled, "the function reads a Float tensor of shape [] that is gone after the call");
}

TEST_P(GraphedFallbackTest, ATensorThatTheFunctionReplacesItself) {
  const auto make = [] {
    return [hidden = torch::zeros({8, 12}, device())](const at::Tensor& x) mutable {
      hidden = torch::tanh(hidden * 0.5 + x);
      return hidden * 2;
    };
  };
  const at::NoGradGuard no_grad;
  (void)expect_eager(make(), make(), "the function reads a Float tensor of shape [8, 12] that is gone after the call");
  EXPECT_THAT(reasons[0], AllOf(HasSubstr("copy_()"), HasSubstr("[PG401]"),
                                HasSubstr("where: operation 1 of the step, "
                                          "aten::mul."),
                                HasSubstr("graphed_fallback_test.cpp:")));
}

// The first operation that uses its values is named, not one that asks for its shape.
TEST_P(GraphedFallbackTest, WhoReadsATensorThatIsReplacedIsNamed) {
  const auto make = [] {
    return [hidden = torch::zeros({8, 12}, device())](const at::Tensor& x) mutable {
      const at::Tensor like = at::empty_like(hidden);
      const at::Tensor moved = at::relu(x) + hidden;
      hidden = torch::tanh(moved);
      return moved * 2;
    };
  };
  const at::NoGradGuard no_grad;
  (void)expect_eager(make(), make(), "the function reads a Float tensor of shape [8, 12] that is gone after the call");
  EXPECT_THAT(reasons[0], HasSubstr("where: operation 3 of the step, aten::add.Tensor, "));
}

TEST_P(GraphedFallbackTest, ATensorThatOthersReplaceAllTheTime) {
  at::Tensor scale = torch::ones({}, device());
  Graphed graphed = pianola::graphed([&](const at::Tensor& x) { return x * scale; }, logged({.warmup = 1}));
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 40; ++call) {
    if (call % 2 == 0) scale = torch::full({}, 0.1 * static_cast<double>(call), device());
    EXPECT_TRUE(same(graphed(batch(call)), batch(call) * scale)) << call;
  }
  EXPECT_EQ(latest(graphed).state, GraphedState::eager);
  EXPECT_THAT(reasons,
              ElementsAre(AllOf(HasSubstr("it was captured 9 times in a row, and is stale again"),
                                HasSubstr("a Float tensor of shape [] that the function reads was replaced"))));
}

TEST_P(GraphedFallbackTest, ATensorThatOthersReplaceNowAndThen) {
  at::Tensor scale = torch::ones({}, device());
  Graphed graphed = pianola::graphed([&](const at::Tensor& x) { return x * scale; }, logged({.warmup = 1}));
  const at::NoGradGuard no_grad;
  constexpr std::uint64_t kEpochs = 12, kCalls = 20;
  for (std::uint64_t call = 0; call < kEpochs * kCalls; ++call) {
    if (call % kCalls == 0) scale = torch::full({}, 0.1 * static_cast<double>(call), device());
    EXPECT_TRUE(same(graphed(batch(call)), batch(call) * scale)) << call;
  }
  EXPECT_EQ(latest(graphed).state, GraphedState::captured);
  EXPECT_EQ(latest(graphed).recaptures, kEpochs - 1);
  EXPECT_THAT(reasons, IsEmpty());
}

TEST_P(GraphedFallbackTest, ATensorThatIsTransposedInPlaceIsCapturedAnew) {
  at::Tensor weight = randn({12, 12}, 3);
  Graphed graphed = pianola::graphed([&](const at::Tensor& x) { return at::mm(x, weight); }, logged({.warmup = 1}));
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 12; ++call) {
    if (call == 5) weight.t_();
    if (call == 9) weight.resize_({12, 6});
    EXPECT_TRUE(same(graphed(batch(call)), at::mm(batch(call), weight))) << call;
  }
  EXPECT_EQ(latest(graphed).state, GraphedState::captured);
  EXPECT_EQ(latest(graphed).recaptures, 2U);
}

TEST_P(GraphedFallbackTest, AParameterThatIsTransposedInPlaceIsCapturedAnew) {
  const auto make = [] {
    torch::manual_seed(5);
    auto net = std::make_shared<torch::nn::LinearImpl>(12, 12);
    net->to(device());
    return net;
  };
  const auto eager = make(), net = make();
  Graphed graphed = pianola::graphed([net](const at::Tensor& x) { return net->forward(x); }, logged({.warmup = 1}));
  for (std::uint64_t call = 0; call < 12; ++call) {
    if (call == 5) {
      const at::NoGradGuard no_grad;
      eager->weight.t_();
      net->weight.t_();
    }
    EXPECT_TRUE(same(graphed(batch(call)), eager->forward(batch(call)))) << call;
  }
  EXPECT_EQ(latest(graphed).state, GraphedState::captured);
  EXPECT_EQ(latest(graphed).recaptures, 1U);
}

TEST_P(GraphedFallbackTest, AHookThatALeafGetsLaterIsHeeded) {
  const at::Tensor weight = randn({12}, 3).requires_grad_();
  const auto step = [&](const at::Tensor& x) {
    weight.mutable_grad() = at::Tensor();
    (x * weight).sum().backward();
    return weight.grad().clone();
  };
  Graphed graphed = pianola::graphed(step, logged({.warmup = 1}));
  unsigned hook = 0;
  for (std::uint64_t call = 0; call < 12; ++call) {
    if (call == 5) hook = weight.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    if (call == 9) weight.remove_hook(hook);
    const at::Tensor result = graphed(batch(call));
    EXPECT_TRUE(same(result, step(batch(call)))) << call;
  }
  EXPECT_EQ(latest(graphed).state, GraphedState::captured);
}

TEST_P(GraphedFallbackTest, GradientsThatAreSetAnewAllTheTime) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed([net](const at::Tensor& x) { square(net->forward(x)).backward(); },
                                     logged({.warmup = 1, .max_in_flight = 1}));
  const auto eager = make_net<MlpNet>();
  for (std::uint64_t call = 0; call < 20; ++call) {
    for (const auto& one : {eager, net})
      one->first->weight.mutable_grad() = torch::ones_like(one->first->weight).detach();
    (void)graphed.call({{batch(call)}});
    square(eager->forward(batch(call))).backward();
    expect_same_state(*net, *eager, "in call " + std::to_string(call));
  }
  EXPECT_THAT(reasons, IsEmpty());
  const SignatureInfo info = graphed.info().signatures.at(0);
  EXPECT_EQ(info.recaptures, 2U) << "the last one works on gradients of its own";
  EXPECT_GE(info.replays, 18U);
}

TEST_P(GraphedFallbackTest, GradientsThatAreSetAnewAllTheTimeAndShareMemory) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed([net](const at::Tensor& x) { square(net->forward(x)).backward(); },
                                     logged({.warmup = 1, .max_in_flight = 1}));
  const auto eager = make_net<MlpNet>();
  for (std::uint64_t call = 0; call < 20; ++call) {
    for (const auto& one : {eager, net}) {
      const at::Tensor shared =
          torch::ones({one->first->weight.numel()}, one->first->weight.options().requires_grad(false));
      one->first->weight.mutable_grad() = shared.view(one->first->weight.sizes());
      one->first->bias.mutable_grad() = shared.narrow(0, 0, one->first->bias.numel());
    }
    (void)graphed.call({{batch(call)}});
    square(eager->forward(batch(call))).backward();
    expect_same_state(*net, *eager, "in call " + std::to_string(call));
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("is stale again: gradients are not as they were at capture")));
}

TEST_P(GraphedFallbackTest, AParameterThatWasNotUsedBefore) {
  const auto net = make_net<MlpNet>();
  bool both = false;
  const auto step = [&](const at::Tensor& x) {
    net->zero_grad();
    const at::Tensor loss = square(both ? net->forward(x) : net->first(x));
    loss.backward();
    return loss.detach();
  };
  Graphed graphed = pianola::graphed(step, logged({.warmup = 1}));
  (void)graphed(batch(1));
  both = true;
  for (std::uint64_t call = 0; call < 4; ++call) EXPECT_TRUE(same(graphed(batch(call)), step(batch(call))));
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("parameter of shape [24] that it did not use in the call before")));
}

TEST_P(GraphedFallbackTest, AResultOfAnotherStructureInAnotherRun) {
  std::int64_t runs = 0;
  Graphed graphed = pianola::graphed([&](const at::Tensor& x) { return std::tuple(x * 2, ++runs); }, logged());
  for (std::uint64_t call = 0; call < 6; ++call) {
    const c10::IValue result = graphed.forward({batch(call)});
    EXPECT_TRUE(same(result.toTupleRef().elements()[0].toTensor(), batch(call) * 2));
    EXPECT_EQ(result.toTupleRef().elements()[1].toInt(), runs);
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("the function returned another structure in another run: output 1")));
}

TEST_P(GraphedFallbackTest, ABufferThatRequiresGrad) {
  const auto net = make_net<MlpNet>();
  net->register_buffer("odd", torch::ones({1}, device()).requires_grad_());
  Graphed graphed = pianola::graphed(net, logged());
  for (std::uint64_t call = 0; call < 5; ++call) EXPECT_TRUE(same(graphed(batch(call)), net->forward(batch(call))));
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("buffer 'odd' requires grad")));
}

TEST_P(GraphedFallbackTest, AnErrorThatCaptureAloneBringsIsNoErrorOfTheCall) {
  for (const bool is_std : {true, false}) {
    const auto twice = [is_std](const at::Tensor& x) {
      if (graph::capture_is_open() && is_std) throw std::runtime_error("not under capture");
      if (graph::capture_is_open()) throw 42;
      return x * 2;
    };
    Graphed graphed = pianola::graphed(twice, logged());
    for (std::uint64_t call = 0; call < 6; ++call) EXPECT_TRUE(same(graphed(batch(call)), batch(call) * 2));
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("not under capture"),
                                   HasSubstr("the function threw something that is not a std::exception")));
}

TEST_P(GraphedFallbackTest, AFunctionThatFailsUnderCaptureHasNoPool) {
  const std::size_t before = living_pools().size();
  const auto product = [](const at::Tensor& x) {
    at::Tensor y = x.matmul(x.t());
    if (graph::capture_is_open()) throw std::runtime_error("not under capture");
    return y;
  };
  const at::NoGradGuard no_grad;
  const Graphed graphed = expect_eager(product, product, "not under capture");
  EXPECT_EQ(living_pools().size(), before);
}

TEST_P(GraphedFallbackTest, AStepThatFailsUnderCaptureLeavesGradientsAlone) {
  const auto net = make_net<MlpNet>();
  const at::Tensor& weight = net->first->weight;
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        if (graph::capture_is_open()) net->zero_grad();
        square(net->forward(x)).backward();
        if (graph::capture_is_open()) throw std::runtime_error("not under capture");
      },
      logged({.warmup = 1}));
  const auto eager = make_net<MlpNet>();
  for (std::uint64_t call = 0; call < 3; ++call) {
    const at::Tensor before = weight.grad();
    (void)graphed.call({{batch(call)}});
    square(eager->forward(batch(call))).backward();
    EXPECT_TRUE(call == 0 || weight.grad().is_same(before));
    expect_same_state(*net, *eager, "in call " + std::to_string(call));
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("not under capture")));
}

TEST_P(GraphedFallbackTest, ErrorsOfTheFunctionReachTheCallerUnchanged) {
  struct MyError : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  bool fail = false;
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        if (fail) throw MyError("mine");
        return x * 2;
      },
      logged({.warmup = 3}));
  for (std::uint64_t call = 0; call < 4; ++call) {
    fail = true;  // also in the call that would be observed, and in the one that would be captured
    EXPECT_THROW((void)graphed(batch(call)), MyError) << call;
    fail = false;
    if (call < 3) {
      EXPECT_TRUE(same(graphed(batch(call)), batch(call) * 2));
    }
  }
  EXPECT_TRUE(same(graphed(batch(1)), batch(1) * 2));
  EXPECT_EQ(latest(graphed).state, GraphedState::captured) << "what fails eagerly too is no fault of the capture";
}

TEST_P(GraphedFallbackTest, AHookThatIsAddedLaterIsCalled) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged({.warmup = 1}));
  for (std::uint64_t call = 0; call < 6; ++call) {
    if (call == 3) {
      for (const auto& one : {eager, net}) one->first->weight.register_hook([](const at::Tensor& g) { return g * 2; });
    }
    square(graphed(batch(call))).backward();
    square(eager->forward(batch(call))).backward();
    expect_same_state(*net, *eager, "in call " + std::to_string(call));
  }
  EXPECT_EQ(latest(graphed).recaptures, 1U);
  EXPECT_EQ(latest(graphed).replays, 6U - 1 - 1);
}

TEST_P(GraphedFallbackTest, ReplacedParametersAreFoundInEachKindOfCall) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged({.warmup = 1}));
  for (const bool gradients : {false, true}) {
    const at::AutoGradMode grad_mode(gradients);
    for (std::uint64_t call = 0; call < 6; ++call) {
      if (call == 3) net->second->weight.set_data(net->second->weight.detach() * 2);
      EXPECT_TRUE(same(graphed(batch(call)), net->forward(batch(call)))) << call;
    }
    EXPECT_EQ(latest(graphed).recaptures, 1U);
    EXPECT_EQ(latest(graphed).replays, 4U);
  }
}

TEST_P(GraphedFallbackTest, AParameterOfAFunctionThatIsFrozenGetsNoGradient) {
  const at::Tensor w = batch(1, 1).requires_grad_(), v = batch(2, 1).requires_grad_();
  Graphed graphed = pianola::graphed([&](const at::Tensor& x) { return x * w + v; }, logged({.warmup = 1}));
  for (std::uint64_t call = 0; call < 8; ++call) {
    if (call == 4) w.set_requires_grad(false);
    const at::Tensor before = w.grad().defined() ? w.grad().clone() : at::Tensor();
    graphed(batch(call)).sum().backward();
    if (call >= 4) {
      EXPECT_TRUE(same(w.grad(), before));
    }
  }
  EXPECT_EQ(latest(graphed).recaptures, 1U);
  EXPECT_EQ(latest(graphed).replays, 8U - 2);
  EXPECT_TRUE(same(v.grad(), torch::full({1, 12}, 8.0 * 8, device())));
}

TEST_P(GraphedFallbackTest, OptionsOutOfRangeAreRefused) {
  const auto net = make_net<MlpNet>();
  const auto message = [&](const char* title, const GraphedOptions& options) {
    return refusal<UsageError>(title, [&] { (void)pianola::graphed(net, options); });
  };
  EXPECT_THAT(message("no warm-up of graphed", {.warmup = 0}), HasSubstr("warmup must be 1 or more, got 0"));
  EXPECT_THAT(message("no capacity", {.capacity = 0}), HasSubstr("capacity must be 1 or more, got 0"));
  EXPECT_THAT(message("none in flight", {.max_in_flight = 0}), HasSubstr("max_in_flight must be 1 or more, got 0"));
}

TEST_P(GraphedFallbackTest, OneResultIsWhatTheOperatorReturns) {
  Graphed graphed = pianola::graphed([](const at::Tensor& x) { return std::tuple(x, x * 2); });
  EXPECT_THAT(refusal<UsageError>("operator() of graphed", [&] { (void)graphed(batch(1)); }),
              HasSubstr("operator() returns one tensor, but the function returns 2"));
}

}  // namespace
}  // namespace pianola::graphed_fallback_test
