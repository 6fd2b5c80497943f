#include <pianola/callable/structure.hpp>
#include <pianola/callable/testing/twins.hpp>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace pianola::inputs_test {
namespace {

using c10::IValue;
using ::testing::AllOf;
using testing::clone_all;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using ::testing::Not;
using testing::refusal;

// What a callable may be called with, and be.
class InputsTest : public testing::CallableTest {
 protected:
  using Arguments = std::vector<IValue>;
  using Run = std::function<IValue(const Arguments&)>;
  using MakeArguments = std::function<Arguments(std::uint64_t seed)>;

  static at::Tensor leaf(at::IntArrayRef sizes, std::uint64_t seed) { return randn(sizes, seed).requires_grad_(); }

  // Forward and backward: results, and gradients of inputs and parameters.
  static NamedTensors step(const Run& run, const Arguments& arguments, const std::vector<at::Tensor>& parameters) {
    NamedTensors made;
    std::vector<at::Tensor> inputs, outputs;
    const IValue given = c10::ivalue::Tuple::create(arguments);
    (void)callable::Structure(given, "input").flatten(given, inputs);
    for (const at::Tensor& input : inputs) {
      if (input.requires_grad()) input.retain_grad();
    }
    for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    const IValue value = run(arguments);
    (void)callable::Structure(value, "output").flatten(value, outputs);
    at::Tensor loss = torch::zeros({}, device());
    for (const at::Tensor& output : outputs) {
      made.emplace_back("output", output);
      if (output.is_floating_point()) loss = loss + (output * output).sum();
    }
    if (loss.requires_grad()) loss.backward();
    for (const at::Tensor& input : inputs) made.emplace_back("input gradient", input.grad());
    for (const at::Tensor& parameter : parameters) made.emplace_back("parameter gradient", parameter.grad());
    return clone_all(made);
  }

  static void expect_calls_equal_eager(const Callable& original, const MakeArguments& make,
                                       const std::vector<at::Tensor>& parameters = {},
                                       const CallableOptions& options = {}) {
    GraphedCallable graphed = make_graphed_callable(original, make(1), options);
    for (std::uint64_t seed = 2; seed < 5; ++seed) {
      const auto actual = step([&](const Arguments& given) { return graphed.forward(given); }, make(seed), parameters);
      expect_same(actual, step(original, make(seed), parameters), "in call " + std::to_string(seed));
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(InputsTest);

TEST_P(InputsTest, SeveralTensorsOfWhichSomeRequireGradAndSomeAreIntegers) {
  const at::Tensor table = leaf({9, 4}, 7);
  expect_calls_equal_eager([=](const at::Tensor& rows, const at::Tensor& scale,
                               const at::Tensor& shift) { return table.index_select(0, rows) * scale + shift; },
                           [](std::uint64_t seed) {
                             return Arguments{randint(9, {5}, seed), randn({4}, seed), leaf({5, 4}, seed + 9)};
                           },
                           {table});
}

TEST_P(InputsTest, NestedListsTuplesMapsAndNone) {
  const auto make = [](std::uint64_t seed) {
    c10::Dict<std::string, at::Tensor> map;
    map.insert(seed % 2 == 0 ? "scale" : "mask", leaf({3}, seed));
    map.insert(seed % 2 == 0 ? "mask" : "scale", leaf({3}, seed + 10));
    const IValue pair = c10::ivalue::Tuple::create({leaf({3}, seed + 20), IValue(), randn({3}, seed + 30)});
    return Arguments{std::vector<at::Tensor>{leaf({3}, seed + 40), leaf({3}, seed + 50)}, pair, map, IValue()};
  };
  expect_calls_equal_eager(
      [](const std::vector<IValue>& given) {
        const auto list = given[0].toTensorVector();
        const auto& pair = given[1].toTupleRef().elements();
        const auto map = given[2].to<c10::Dict<std::string, at::Tensor>>();
        EXPECT_TRUE(pair[1].isNone() && given[3].isNone());
        return list[0] * list[1] + pair[0].toTensor() * pair[2].toTensor() +
               map.at("scale") * torch::exp(map.at("mask"));
      },
      make);
}

TEST_P(InputsTest, FreezesNumbersAndRefusesOthers) {
  const Callable original(
      [](const at::Tensor& x, double scale, std::int64_t power, bool negate, const std::string& how) {
        const at::Tensor y = (how == "sine" ? x.sin() : x.cos()).pow(power) * scale;
        return negate ? -y : y;
      });
  expect_calls_equal_eager(original, [](std::uint64_t seed) {
    return Arguments{leaf({6}, seed), 2.5, 3, true, "sine"};
  });

  GraphedCallable graphed = make_graphed_callable(original, {randn({6}), 2.5, 3, true, "sine"});
  const auto call = [&](Arguments arguments) { return [&, arguments] { (void)graphed.forward(arguments); }; };
  EXPECT_THAT(refusal<GuardError>("another number", call({randn({6}), 3.5, 3, true, "sine"})),
              AllOf(HasSubstr("input 1: captured 2.5, received 3.5"), HasSubstr("nothing was launched")));
  EXPECT_THAT(refusal<GuardError>("another string", call({randn({6}), 2.5, 3, true, "cosine"})),
              HasSubstr("input 4: captured sine, received cosine"));
  EXPECT_THAT(refusal<GuardError>("an argument less", call({randn({6}), 2.5, 3, true})),
              AllOf(HasSubstr("of 5"), HasSubstr("of 4")));
}

TEST_P(InputsTest, UnusedOnesThatRequireGradNeedAnOption) {
  const Callable original([](const at::Tensor& x, const at::Tensor& /*unused*/) { return x.tanh(); });
  const auto make = [](std::uint64_t seed) { return Arguments{leaf({4}, seed), leaf({2}, seed)}; };
  EXPECT_THAT(refusal<UsageError>("unused input", [&] { (void)make_graphed_callable(original, make(1)); }),
              AllOf(HasSubstr("input 1 requires grad, but no output depends on it"), HasSubstr("allow_unused_input")));
  expect_calls_equal_eager(original, make, {}, {.allow_unused_input = true});
}

TEST_P(InputsTest, MayBeParametersThatTheCallableDoesNotReadByItself) {
  const auto affine = [](const at::Tensor& x, const at::Tensor& weight) { return torch::matmul(x, weight).tanh(); };
  const at::Tensor weight = leaf({12, 5}, 3);
  GraphedCallable graphed = make_graphed_callable(affine, {leaf({8, 12}, 1), weight});
  for (std::uint64_t seed = 2; seed < 6; ++seed) {
    const at::Tensor x = randn({8, 12}, seed).requires_grad_();
    if (seed % 2 == 0) weight.mutable_grad().reset();
    const at::Tensor before = weight.grad().defined() ? weight.grad().clone() : at::Tensor();
    graphed(x, weight).square().sum().backward();
    const at::Tensor actual = weight.grad().clone();
    weight.mutable_grad() = before;
    affine(x, weight).square().sum().backward();
    EXPECT_TRUE(testing::same(actual, weight.grad())) << seed;
    const torch::NoGradGuard no_grad;
    weight.add_(randn({12, 5}, seed + 20) * 0.1);
  }
}

// In eager its gradients are added up in the order of all operations that read it.
TEST_P(InputsTest, ThatAreParametersTheCallableReadsByItselfAreRefused) {
  const at::Tensor weight = leaf({4, 4}, 3), other = leaf({4, 4}, 4);
  const Callable original([=](const at::Tensor& x, const at::Tensor& y) { return x * weight + y; });
  const auto make = [&] { (void)make_graphed_callable(original, {leaf({4, 4}, 1), weight}); };
  EXPECT_THAT(refusal<UsageError>("a parameter as sample", make),
              AllOf(HasSubstr("input 1 is a Float parameter of shape [4, 4], which the callable also reads by itself"),
                    HasSubstr("either pass it")));
  for (const GradPolicy policy : {GradPolicy::accumulate, GradPolicy::clone}) {
    GraphedCallable graphed = make_graphed_callable(original, {leaf({4, 4}, 1), other}, {.grad = policy});
    const at::Tensor x = leaf({4, 4}, 5);
    EXPECT_THAT(
        refusal<GuardError>("a parameter as input", [&] { (void)graphed(x, weight); }),
        AllOf(HasSubstr("input 1: it is a Float parameter of shape [4, 4], which the callable also reads by itself"),
              HasSubstr("nothing was launched")));
    graphed(x, other).sum().backward();
    EXPECT_TRUE(testing::same(weight.grad(), x.detach()));
    weight.mutable_grad().reset();
  }
}

TEST_P(InputsTest, OneTensorMayBePassedTwice) {
  expect_calls_equal_eager([](const at::Tensor& a, const at::Tensor& b) { return torch::matmul(a, b); },
                           [](std::uint64_t seed) {
                             const at::Tensor x = leaf({5, 5}, seed);
                             return Arguments{x, x};
                           });
}

TEST_P(InputsTest, LaidOutAsTheSample) {
  using Lay = std::function<at::Tensor(const at::Tensor&)>;
  struct Layout {
    const char* name;
    std::vector<std::int64_t> sizes;
    Lay lay;
  };
  const std::vector<Layout> layouts = {
      {"transposed", {12, 8}, [](const at::Tensor& x) { return x.t(); }},
      {"sliced", {8, 24}, [](const at::Tensor& x) { return x.slice(1, 3, 15); }},
      {"strided", {16, 24}, [](const at::Tensor& x) { return x.slice(0, 0, 16, 2).slice(1, 0, 24, 2); }},
      {"expanded over rows",
       {1, 12},
       [](const at::Tensor& x) {
         return x.expand({8, 12});
       }},
      {"expanded over columns",
       {8, 1},
       [](const at::Tensor& x) {
         return x.expand({8, 12});
       }},
      {"unfolded", {19}, [](const at::Tensor& x) { return x.unfold(0, 12, 1); }},
  };
  const auto weight = leaf({12, 5}, 3);
  const Callable original(
      [=](const at::Tensor& x) { return std::tuple(torch::matmul(x, weight), x.sum(0), x.softmax(1), x.mean()); });
  for (const auto& [name, sizes, lay] : layouts) {
    SCOPED_TRACE(name);
    for (const bool gradients : {false, true}) {
      const auto make = [&, sizes = sizes, lay = lay](std::uint64_t seed) {
        return Arguments{lay(randn(sizes, seed).requires_grad_(gradients))};
      };
      expect_calls_equal_eager(original, make, {weight});
    }
  }
}

TEST_P(InputsTest, ChannelsLast) {
  const auto net = make_net<testing::ConvNet>();
  expect_calls_equal_eager(
      net,
      [](std::uint64_t seed) {
        return Arguments{randn({4, 3, 6, 6}, seed).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_()};
      },
      net->parameters());
  GraphedCallable graphed = make_graphed_callable(net, {leaf({4, 3, 6, 6}, 1)});
  const at::Tensor other = randn({4, 3, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  EXPECT_THAT(refusal<GuardError>("other strides", [&] { (void)graphed(other); }),
              HasSubstr("input 0: strides: captured [108, 36, 6, 1], received [108, 1, 18, 3]"));
}

TEST_P(InputsTest, WithoutElementsOrDimensions) {
  expect_calls_equal_eager(
      [](const at::Tensor& a, const at::Tensor& b) {
        return torch::cat({a, b}) * 2;
      },
      [](std::uint64_t seed) {
        return Arguments{leaf({0, 3}, seed), leaf({2, 3}, seed)};
      });
  expect_calls_equal_eager([](const at::Tensor& x, const at::Tensor& scale) { return x * scale; },
                           [](std::uint64_t seed) {
                             return Arguments{leaf({3}, seed), leaf({}, seed)};
                           });
}

TEST_P(InputsTest, WrittenIntoTheStaticOnesInPlace) {
  const auto net = make_net<testing::MlpNet>();
  GraphedCallable graphed = make_graphed_callable(net, {leaf({8, 12}, 1)});
  const Callable original(net);
  const at::Tensor fixed = graphed.static_inputs()[0].requires_grad_();
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    {
      const torch::NoGradGuard no_grad;
      fixed.copy_(randn({8, 12}, seed));
    }
    fixed.mutable_grad().reset();
    const auto actual =
        step([&](const Arguments& given) { return graphed.forward(given); }, {fixed}, net->parameters());
    EXPECT_EQ(graphed.static_inputs()[0].data_ptr(), fixed.data_ptr());
    expect_same(actual, step(original, {leaf({8, 12}, seed)}, net->parameters()), "in call " + std::to_string(seed));
  }
}

TEST_P(InputsTest, AreCopiedAlsoWhereTheyLookAtStaticMemoryInAnotherWay) {
  const auto weighted = [](const at::Tensor& a, const at::Tensor& b) { return a * 2 + b * 3; };
  GraphedCallable graphed = make_graphed_callable(weighted, {randn({4}), randn({4})});
  auto fixed = graphed.static_inputs();
  const at::Tensor a = randn({4}, 5), b = randn({4}, 6);
  fixed[0].copy_(a);
  fixed[1].copy_(b);
  EXPECT_TRUE(testing::same(graphed(fixed[1], fixed[0]), weighted(b, a))) << "swapped";

  const at::Tensor numbers = torch::complex(a, b);
  GraphedCallable doubled = make_graphed_callable([](const at::Tensor& x) { return x * 2; }, {numbers.clone()});
  fixed = doubled.static_inputs();
  fixed[0].copy_(numbers);
  EXPECT_TRUE(testing::same(doubled(fixed[0].conj()), numbers.conj() * 2)) << "its conjugate view";
}

TEST_P(InputsTest, WithAHistory) {
  const auto net = make_net<testing::MlpNet>();
  const auto make = [](std::uint64_t seed) { return Arguments{torch::sin(leaf({8, 12}, seed))}; };
  expect_calls_equal_eager(net, make, net->parameters());
}

struct GatedNet : torch::nn::Module {
  GatedNet() { linear = register_module("linear", torch::nn::Linear(12, 12)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& gate = {}, std::optional<double> scale = 2.0) {
    const at::Tensor y = linear(x) * scale.value_or(1.0);
    return gate.defined() ? y * gate.sigmoid() : y;
  }
  torch::nn::Linear linear{nullptr};
};

at::Tensor doubled_sine(const at::Tensor& x) { return x.sin() * 2; }

TEST_P(InputsTest, OfFunctionsOfAnySignature) {
  const auto tensors = [](std::size_t count) {
    return [count](std::uint64_t seed) {
      Arguments arguments;
      for (std::size_t i = 0; i < count; ++i) arguments.emplace_back(leaf({4}, 10 * seed + i));
      return arguments;
    };
  };
  expect_calls_equal_eager(doubled_sine, tensors(1));
  expect_calls_equal_eager(std::function<at::Tensor(at::Tensor)>(doubled_sine), tensors(1));
  expect_calls_equal_eager([](at::Tensor a, at::Tensor b) { return a * b; }, tensors(2));
  expect_calls_equal_eager([](at::Tensor a, const at::Tensor& b, at::Tensor c) { return a * b - c; }, tensors(3));
  expect_calls_equal_eager([](std::vector<at::Tensor> all) { return all[0] * all[1] + all[2]; }, tensors(3));
  expect_calls_equal_eager([](at::TensorList all) { return all[0] * all[1]; }, tensors(2));
  expect_calls_equal_eager([](std::vector<IValue> all) { return all[0].toTensor() * all[1].toTensor(); }, tensors(2));

  const auto mixed = [](const at::Tensor& x, std::optional<at::Tensor> mask, std::tuple<at::Tensor, at::Tensor> pair,
                        const c10::Dict<std::string, at::Tensor>& map, double scale, const at::Tensor& bias) {
    at::Tensor y = x * scale + std::get<0>(pair) * std::get<1>(pair) + map.at("more");
    if (mask) y = y * *mask;
    return bias.defined() ? y + bias : y;
  };
  for (const int given : {0, 1, 2}) {
    expect_calls_equal_eager(mixed, [given](std::uint64_t seed) {
      c10::Dict<std::string, at::Tensor> map;
      map.insert("more", leaf({4}, seed));
      Arguments arguments = {leaf({4}, seed + 1), given > 0 ? IValue(leaf({4}, seed + 2)) : IValue(),
                             std::tuple(leaf({4}, seed + 3), leaf({4}, seed + 4)), map, 1.5};
      if (given > 0) arguments.push_back(given > 1 ? IValue(leaf({4}, seed + 5)) : IValue());
      return arguments;
    });
  }
  expect_calls_equal_eager([](const std::vector<at::Tensor>& parts) { return torch::cat(parts); },
                           [](std::uint64_t seed) {
                             return Arguments{std::vector<at::Tensor>{leaf({2}, seed), leaf({3}, seed)}};
                           });
}

TEST_P(InputsTest, OfModulesByPointerHolderAndContainer) {
  const auto batch = [](std::uint64_t seed) { return Arguments{leaf({8, 12}, seed)}; };
  torch::manual_seed(3);
  torch::nn::Linear linear(12, 5);
  linear->to(device());
  expect_calls_equal_eager(linear, batch, linear->parameters());
  expect_calls_equal_eager(linear.ptr(), batch, linear->parameters());

  torch::nn::Sequential sequential(torch::nn::Linear(12, 7), torch::nn::Functional(torch::tanh),
                                   torch::nn::Linear(7, 3));
  sequential->to(device());
  expect_calls_equal_eager(sequential, batch, sequential->parameters());

  const auto gated = make_net<GatedNet>();
  const auto two = [](std::uint64_t seed) { return Arguments{leaf({8, 12}, seed), leaf({8, 12}, seed + 10)}; };
  expect_calls_equal_eager(gated, batch, gated->parameters());
  expect_calls_equal_eager(gated, two, gated->parameters());
  const auto scaled = [](std::uint64_t seed) { return Arguments{leaf({8, 12}, seed), IValue(), 3.0}; };
  expect_calls_equal_eager(gated, scaled, gated->parameters());

  torch::nn::MultiheadAttention attention(12, 3);
  attention->to(device());
  const Arguments sample = {leaf({6, 2, 12}, 1), leaf({4, 2, 12}, 2), leaf({4, 2, 12}, 3)};
  EXPECT_THAT(
      refusal<CaptureError>("torch::nn::MultiheadAttention", [&] { (void)make_graphed_callable(attention, sample); }),
      HasSubstr("aten::equal"));  // it compares key and value on the host
}

TEST_P(InputsTest, OfTorchsTransformerWhoseQueryKeyAndValueAreOneTensor) {
  torch::manual_seed(3);
  const auto layer = torch::nn::TransformerEncoderLayerOptions(12, 3).dim_feedforward(24).dropout(0);
  torch::nn::TransformerEncoder encoder(torch::nn::TransformerEncoderLayer(layer), 2);
  encoder->to(device());
  const auto batch = [](std::uint64_t seed) { return Arguments{leaf({6, 2, 12}, seed)}; };
  expect_calls_equal_eager(encoder, batch, encoder->parameters());
}

TEST_P(InputsTest, OfAFunctionWithoutAnyComeFromAClosure) {
  const at::Tensor weight = leaf({4}, 3);
  const Callable closure([=] { return weight * weight.exp(); });
  EXPECT_THAT(refusal<UsageError>("no inputs", [&] { (void)make_graphed_callable(closure, {}); }),
              AllOf(HasSubstr("no sample holds a tensor"), HasSubstr("pass a tensor")));
  auto graphed = make_graphed_callables({closure, doubled_sine}, {{}, {randn({4})}});
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    weight.data().copy_(randn({4}, seed));
    const auto actual = step([&](const Arguments& given) { return graphed[0].forward(given); }, {}, {weight});
    expect_same(actual, step(closure, {}, {weight}));
  }
}

TEST_P(InputsTest, ThatDifferAreRefusedWithEveryDifference) {
  GraphedCallable graphed = make_graphed_callable([](const at::Tensor& x, const at::Tensor& rows, const at::Tensor& y,
                                                     const at::Tensor& z) { return (x + y + z).index_select(0, rows); },
                                                  {leaf({4, 3}, 1), randint(4, {2}), randn({4, 3}), randn({4, 3})});
  const auto differing = [&] {
    (void)graphed(randn({5, 3}), randint(4, {2}).to(at::kInt), leaf({3, 4}, 1).t(), at::Tensor());
  };
  EXPECT_THAT(refusal<GuardError>("several differences", differing),
              AllOf(HasSubstr("input 0: shape: captured [4, 3], received [5, 3]"),
                    HasSubstr("input 0: requires grad: captured yes, received no"),
                    HasSubstr("input 1: dtype: captured Long, received Int"),
                    HasSubstr("input 2: requires grad: captured no, received yes"),
                    HasSubstr("input 2: strides: captured [3, 1], received [1, 4]"),
                    HasSubstr("input 3: captured a tensor, received None"), HasSubstr("nothing was launched"),
                    HasSubstr("OnMismatch::eager"), Not(HasSubstr("input 1: shape"))));
  const at::Tensor x = leaf({4, 3}, 1);
  EXPECT_THAT(refusal<GuardError>("too few inputs", [&] { (void)graphed(x, randint(4, {2})); }),
              HasSubstr("inputs: captured 4 tensors, received 2"));
  EXPECT_THAT(refusal<GuardError>("a sparse input",
                                  [&] {
                                    (void)graphed(x, randint(4, {2}), randn({4, 3}).to_sparse(), randn({4, 3}));
                                  }),
              HasSubstr("input 2: captured a plain tensor, received a sparse tensor"));
  EXPECT_EQ(graphed.in_flight(), 0);
}

TEST_P(InputsTest, ThatDifferRunEagerlyWhereAskedFor) {
  const auto net = make_net<testing::MlpNet>();
  const Callable original(net);
  GraphedCallable graphed = make_graphed_callable(net, {leaf({8, 12}, 1)}, {.on_mismatch = OnMismatch::eager});
  const Run run = [&](const Arguments& given) { return graphed.forward(given); };
  const Run call = [&](const Arguments& given) { return graphed(given[0].toTensor()); };
  for (std::int64_t rows = 6; rows < 10; ++rows) {
    const auto batch = [&] { return Arguments{leaf({rows, 12}, 20 + static_cast<std::uint64_t>(rows))}; };
    const NamedTensors expected = step(original, batch(), net->parameters());
    expect_same(step(run, batch(), net->parameters()), expected, "by forward()");
    expect_same(step(call, batch(), net->parameters()), expected, "by operator()");
  }
  const auto too_few = [&] { (void)graphed.call({}); };
  EXPECT_THAT(refusal<Error>("too few inputs, with OnMismatch::eager", too_few), HasSubstr("received 0"));
}

TEST_P(InputsTest, WithAnotherStructureRunEagerlyWhereAskedFor) {
  const Callable original([](const at::Tensor& x, std::optional<at::Tensor> mask, double scale) {
    return (mask ? x * *mask : x.cos()) * scale;
  });
  const Arguments sample = {leaf({4}, 1), IValue(), 2.0};
  GraphedCallable graphed = make_graphed_callable(original, sample, {.on_mismatch = OnMismatch::eager});
  const Run run = [&](const Arguments& given) { return graphed.forward(given); };
  for (const bool masked : {true, false, true}) {
    for (const double scale : {2.0, 3.0}) {
      const auto make = [&] { return Arguments{leaf({4}, 2), masked ? IValue(leaf({4}, 3)) : IValue(), scale}; };
      expect_same(step(run, make(), {}), step(original, make(), {}));
    }
  }
}

TEST_P(InputsTest, ThatTheCallableWritesOrThatAreSparseAreRefused) {
  const auto writes = [](const at::Tensor& x, const at::Tensor& y) {
    x.view({-1}).add_(1);
    return x * y;
  };
  const at::Tensor x = randn({2, 3}), before = x.clone();
  const auto make = [&] { (void)make_graphed_callable(writes, {x, leaf({2, 3}, 2)}); };
  EXPECT_THAT(refusal<UsageError>("an input written in place", make),
              AllOf(HasSubstr("writes input 0 in place"), HasSubstr("input.clone()")));
  EXPECT_TRUE(testing::same(x, before));
  const auto sparse = [] { (void)make_graphed_callable(doubled_sine, {randn({3, 3}).to_sparse()}); };
  EXPECT_THAT(refusal<UsageError>("a sparse sample", sparse), HasSubstr("input 0"));
}

}  // namespace
}  // namespace pianola::inputs_test
