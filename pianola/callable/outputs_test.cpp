#include <pianola/callable/structure.hpp>
#include <pianola/callable/testing/twins.hpp>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pianola::outputs_test {
namespace {

using c10::IValue;
using ::testing::AllOf;
using testing::clone_all;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::refusal;
using testing::same;

// What a callable may return, and what callers do with it.
class OutputsTest : public testing::CallableTest {
 protected:
  static constexpr std::int64_t kRows = 33;
  using Use = std::function<at::Tensor(const std::vector<at::Tensor>& outputs)>;

  static at::Tensor leaf(at::IntArrayRef sizes, std::uint64_t seed) { return randn(sizes, seed).requires_grad_(); }

  static at::Tensor squares(const std::vector<at::Tensor>& outputs) {
    at::Tensor loss = torch::zeros({}, device());
    for (const at::Tensor& output : outputs) {
      if (output.requires_grad()) loss = loss + (output * output).sum();
    }
    return loss;
  }

  // Results, and the gradients of a loss made of them, for inputs and parameters.
  static NamedTensors step(const std::function<IValue(std::vector<IValue>)>& run, std::uint64_t seed,
                           const std::vector<at::Tensor>& parameters, const Use& loss_of) {
    const at::Tensor x = leaf({kRows, 12}, seed);
    for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    std::vector<at::Tensor> outputs;
    const IValue value = run({x});
    (void)callable::Structure(value, "output").flatten(value, outputs);
    NamedTensors made;
    for (const at::Tensor& output : outputs) {
      made.emplace_back("output", output.detach().clone());
      made.emplace_back("requires grad", torch::full({}, output.requires_grad()));
    }
    const at::Tensor loss = loss_of(outputs);
    if (loss.requires_grad()) loss.backward();
    made.emplace_back("loss", loss);
    made.emplace_back("input gradient", x.grad());
    for (const at::Tensor& parameter : parameters) made.emplace_back("parameter gradient", parameter.grad());
    return clone_all(made);
  }

  static void expect_calls_equal_eager(const Callable& original, const std::vector<at::Tensor>& parameters = {},
                                       const Use& loss_of = squares) {
    for (const OutputPolicy policy : {OutputPolicy::alias, OutputPolicy::clone}) {
      GraphedCallable graphed = make_graphed_callable(original, {leaf({kRows, 12}, 1)}, {.output = policy});
      for (std::uint64_t seed = 2; seed < 5; ++seed) {
        const auto run = [&](std::vector<IValue> given) { return graphed.forward(given); };
        expect_same(step(run, seed, parameters, loss_of), step(original, seed, parameters, loss_of),
                    "in call " + std::to_string(seed) + (policy == OutputPolicy::clone ? " of clones" : ""));
      }
    }
  }

  static std::vector<at::Tensor> call(GraphedCallable& graphed, const at::Tensor& x) { return graphed.call({&x, 1}); }
  static NamedTensors named(const std::vector<at::Tensor>& tensors) {
    NamedTensors all;
    for (const at::Tensor& tensor : tensors) all.emplace_back("output " + std::to_string(all.size()), tensor.detach());
    return all;
  }

  static torch::nn::Linear make_linear(std::int64_t to = 12) {
    torch::manual_seed(5);
    torch::nn::Linear linear(12, to);
    linear->to(device());
    return linear;
  }
};
PIANOLA_ON_EVERY_DEVICE(OutputsTest);

TEST_P(OutputsTest, ComeInTheStructureOfTheOriginal) {
  const auto nested = [](const at::Tensor& x) {
    c10::Dict<std::string, at::Tensor> map;
    map.insert("sine", x.sin());
    map.insert("cosine", x.cos());
    return std::tuple(x * 2, std::vector<at::Tensor>{x + 1, x.exp()}, map, std::int64_t{3});
  };
  expect_calls_equal_eager(nested);
  GraphedCallable graphed = make_graphed_callable(nested, {leaf({3}, 1)});
  const at::Tensor x = leaf({3}, 2);
  const IValue value = graphed.forward({x});
  const auto& entries = value.toTupleRef().elements();
  EXPECT_TRUE(same(entries[1].toTensorVector()[1], x.exp()));
  EXPECT_TRUE(same((entries[2].to<c10::Dict<std::string, at::Tensor>>().at("cosine")), x.cos()));
  EXPECT_EQ(entries[3].toInt(), 3);
  EXPECT_THAT(refusal<UsageError>("operator() for several outputs",
                                  [&] {
                                    value.toTupleRef().elements()[0].toTensor().sum().backward();
                                    (void)graphed(x);
                                  }),
              AllOf(HasSubstr("operator() returns one tensor"), HasSubstr("forward()")));
}

TEST_P(OutputsTest, RequireGradWhereEagerOnesDo) {
  const at::Tensor table = leaf({12, 4}, 2);
  expect_calls_equal_eager(
      [=](const at::Tensor& x) {
        const at::Tensor y = torch::matmul(x, table);
        return std::tuple(y, y.detach() * 2, y.argmax(1), y > 0, x.detach().sum(), std::get<1>(y.topk(2)));
      },
      {table});
}

TEST_P(OutputsTest, ReturnedTwiceAreOneTensorWithOneGradient) {
  const auto twice = [](const at::Tensor& x) {
    const at::Tensor y = x.sin();
    return std::tuple(y, y * 2, y);
  };
  expect_calls_equal_eager(twice, {}, [](const std::vector<at::Tensor>& outputs) {
    EXPECT_TRUE(outputs[0].is_same(outputs[2]));
    return (outputs[0].exp() * outputs[2]).sum() + outputs[1].sum();
  });
}

TEST_P(OutputsTest, MayBeViewsOfOneAnother) {
  auto linear = make_linear();
  expect_calls_equal_eager(
      [linear](const at::Tensor& x) mutable {
        const at::Tensor y = linear(x);
        const auto halves = y.chunk(2, 1);
        return std::tuple(y, halves[0], halves[1], y.t(), y.view({-1}), y.detach());
      },
      linear->parameters());
}

TEST_P(OutputsTest, MayBeInputsAndViewsOfThem) {
  auto linear = make_linear();
  const auto original = [linear](const at::Tensor& x) mutable {
    return std::tuple(x, linear(x).tanh(), x.t(), x.slice(1, 2, 7), x.detach());
  };
  expect_calls_equal_eager(original, linear->parameters());
}

TEST_P(OutputsTest, MayBeWhatOneForwardOrBackwardMovesAndDoesNotCompute) {
  expect_calls_equal_eager([](const at::Tensor& x) { return x + 1; });
  expect_calls_equal_eager([](const at::Tensor& x) { return x.t(); });
  expect_calls_equal_eager([](const at::Tensor& x) { return x; });
}

// The gradient of one layer waits in autograd while the other one's backward runs, in the same static buffers.
TEST_P(OutputsTest, MayHandViewsOfTheirGradientsOn) {
  const at::Tensor w1 = leaf({kRows * 12}, 3), w2 = leaf({kRows * 12}, 4);
  const std::vector<Callable> layers = {[=](const at::Tensor& x) { return x.view({-1}) + w1; },
                                        [=](const at::Tensor& x) { return x.view({-1}) + w2; }};
  const std::vector<IValue> sample = {leaf({kRows, 12}, 1)};
  auto graphed = make_graphed_callables(layers, {sample, sample});
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    const auto product = [](const auto& run) {
      return [run](const std::vector<IValue>& given) -> IValue {
        const at::Tensor x = given[0].toTensor().sin();
        return run(0, x).toTensor() * run(1, x).toTensor();
      };
    };
    const auto actual = product([&](std::size_t layer, const at::Tensor& x) { return graphed[layer].forward({x}); });
    const auto expected = product([&](std::size_t layer, const at::Tensor& x) { return layers[layer]({x}); });
    expect_same(step(actual, seed, {w1, w2}, squares), step(expected, seed, {w1, w2}, squares));
  }
}

TEST_P(OutputsTest, MayBeViewsOfParameters) {
  const at::Tensor weight = leaf({kRows, 12}, 2);
  const auto views = [=](const at::Tensor& x) {
    return std::tuple(x * weight, weight.view_as(weight), weight.t(), weight.detach());
  };
  expect_calls_equal_eager(views, {weight});
  const Callable itself([=](const at::Tensor& x) { return std::tuple(x * weight, weight); });
  EXPECT_THAT(refusal<UsageError>("a parameter itself",
                                  [&] {
                                    (void)make_graphed_callable(itself, {leaf({kRows, 12}, 1)});
                                  }),
              AllOf(HasSubstr("output 1 is a Float parameter of shape [33, 12] itself"), HasSubstr("view_as")));
  const torch::NoGradGuard no_grad;
  GraphedCallable graphed = make_graphed_callable(itself, {randn({kRows, 12}, 1)});
  EXPECT_TRUE(call(graphed, randn({kRows, 12}, 3))[1].is_same(weight));
}

// Writes to a result reach what eager's reach, or are refused.
TEST_P(OutputsTest, ShareMemoryWithInputsWhereEagersDo) {
  const auto views = [](const at::Tensor& x) { return std::tuple(x, x.t(), x.slice(1, 2, 5), x.view({-1}), x * 2); };
  for (const OutputPolicy policy : {OutputPolicy::alias, OutputPolicy::clone}) {
    for (const bool gradients : {false, true}) {
      const torch::AutoGradMode mode(gradients);
      GraphedCallable graphed = make_graphed_callable(views, {randn({6, 12}, 1)}, {.output = policy});
      for (std::uint64_t seed = 2; seed < 5; ++seed) {
        const at::Tensor mine = randn({6, 12}, seed), theirs = mine.clone();
        const auto outputs = call(graphed, mine);
        const auto [same_one, turned, part, flat, twice] = views(theirs);
        EXPECT_TRUE(outputs[0].is_same(mine));
        for (const std::size_t i : {1U, 2U, 3U}) EXPECT_TRUE(outputs[i].is_alias_of(mine)) << i;
        EXPECT_FALSE(outputs[4].is_alias_of(mine));
        outputs[1].mul_(3);
        turned.mul_(3);
        outputs[2].slice(0, 0, 2).zero_();
        part.slice(0, 0, 2).zero_();
        mine[5].fill_(7);
        theirs[5].fill_(7);
        expect_same(named({mine, outputs[1], outputs[2], outputs[3], outputs[4]}),
                    named({theirs, turned, part, flat, twice}));
        EXPECT_EQ(outputs[3]._version(), mine._version());
      }
    }
  }
}

TEST_P(OutputsTest, ThatAreViewsOfDifferentiableInputsCannotBeWritten) {
  GraphedCallable graphed =
      make_graphed_callable([](const at::Tensor& x) { return std::tuple(x.t(), x * 2); }, {leaf({4, 3}, 1)});
  const at::Tensor root = leaf({4, 3}, 2), x = root * 1;
  const auto outputs = call(graphed, x);
  EXPECT_TRUE(outputs[0].is_alias_of(x) && outputs[0].requires_grad());
  EXPECT_THAT(refusal<c10::Error>("a write through a view", [&] { outputs[0].mul_(2); }),
              HasSubstr("is a view and is being modified inplace"));
  (outputs[0].exp().sum() + outputs[1].sum()).backward();
  EXPECT_TRUE(same(root.grad(), root.detach().exp() + 2));
  const at::Tensor next = root * 1;
  const auto others = call(graphed, next);
  next.mul_(2);
  EXPECT_THAT(refusal<c10::Error>("a view whose base was written", [&] { others[0].sum().backward(); }),
              HasSubstr("modified inplace"));
}

TEST_P(OutputsTest, ShareMemoryWithOneAnotherWhereEagersDo) {
  struct Case {
    const char* name;
    std::function<std::vector<at::Tensor>(const at::Tensor& x)> function;
  };
  const std::vector<Case> cases = {
      {"a result and its views",
       [](const at::Tensor& x) {
         const at::Tensor y = x * 2;
         return std::vector<at::Tensor>{y, y.t(), y.slice(1, 2, 5), x.exp()};
       }},
      {"views before the result",
       [](const at::Tensor& x) {
         const at::Tensor y = x * 2;
         return std::vector<at::Tensor>{y[1], y.t(), y};
       }},
      {"parts of what is not returned", [](const at::Tensor& x) { return (x * 2).chunk(3, 1); }},
      {"parts that overlap",
       [](const at::Tensor& x) {
         const at::Tensor y = x.exp();
         return std::vector<at::Tensor>{y.slice(1, 0, 8), x + 1, y.slice(1, 4, 10)};
       }},
  };
  for (const auto& [name, function] : cases) {
    for (const OutputPolicy policy : {OutputPolicy::alias, OutputPolicy::clone}) {
      SCOPED_TRACE(name);
      GraphedCallable graphed = make_graphed_callable(function, {randn({6, 12}, 1)}, {.output = policy});
      for (std::uint64_t seed = 2; seed < 5; ++seed) {
        const at::Tensor x = randn({6, 12}, seed);
        const std::vector<at::Tensor> actual = call(graphed, x), expected = function(x);
        for (std::size_t i = 0; i < actual.size(); ++i) {
          const auto before = actual[0]._version();
          actual[i].mul_(3);
          expected[i].mul_(3);
          expect_same(named(actual), named(expected), "after a write to " + std::to_string(i));
          EXPECT_EQ(actual[0]._version() != before, actual[i].is_alias_of(actual[0])) << i;
        }
      }
    }
  }
}

TEST_P(OutputsTest, ThatShareMemoryAndHaveAHistoryAreWrittenOnlyAsAWhole) {
  const auto function = [](const at::Tensor& x) {
    const at::Tensor y = x * 2;
    return std::tuple(y, y.t());
  };
  GraphedCallable graphed = make_graphed_callable(function, {leaf({4, 3}, 1)});
  const at::Tensor weight = leaf({3, 4}, 9);
  const at::Tensor x = leaf({4, 3}, 2), expected = leaf({4, 3}, 2);
  {
    const auto outputs = call(graphed, x);
    outputs[0].mul_(3).sum().backward();
    std::get<0>(function(expected)).mul_(3).sum().backward();
    EXPECT_TRUE(same(x.grad(), expected.grad()));
  }
  {
    const auto outputs = call(graphed, x);
    const at::Tensor loss = (outputs[1] * weight).sum();  // keeps the view
    outputs[0].mul_(3);
    EXPECT_THAT(refusal<c10::Error>("a view that backward needs, written through the whole", [&] { loss.backward(); }),
                HasSubstr("has been modified inplace"));
    EXPECT_THAT(refusal<c10::Error>("a view, after its base was written", [&] { (void)(outputs[1] * 2); }),
                HasSubstr("modified inplace"));
  }
  {
    const auto outputs = call(graphed, x);
    EXPECT_THAT(refusal<c10::Error>("a view", [&] { outputs[1].mul_(3); }),
                HasSubstr("is a view and is being modified inplace"));
  }
}

TEST_P(OutputsTest, MustNotLookAtAnInputInAnotherWay) {
  const auto make = [](Callable original, const at::Tensor& sample) {
    return [original, sample] { (void)make_graphed_callable(original, {sample}); };
  };
  EXPECT_THAT(refusal<UsageError>("an input as another dtype",
                                  make([](const at::Tensor& x) { return x.view(at::kInt); }, randn({4}))),
              AllOf(HasSubstr("output 0 is a view of input 0 with another dtype or conjugated"), HasSubstr("clone()")));
  EXPECT_THAT(refusal<UsageError>("a conjugated input", make([](const at::Tensor& x) { return x.conj(); },
                                                             torch::complex(randn({4}), randn({4})))),
              HasSubstr("output 0 is a view of input 0 with another dtype or conjugated"));
}

TEST_P(OutputsTest, MayBeExpandedOrTransposed) {
  auto linear = make_linear();
  expect_calls_equal_eager(
      [linear](const at::Tensor& x) mutable {
        const at::Tensor y = linear(x);
        return std::tuple(y.t(), y.mean(0, true).expand({4, 12}), y.view({-1, 3, 4}).permute({2, 0, 1}));
      },
      linear->parameters());
}

// A gradient is brought into the layout of its output. On CUDA, eager takes other kernels for one that repeats elements,
// which round differently: a limit that docs/reference/guards.md names.
TEST_P(OutputsTest, MayGetGradientsOfAnyLayout) {
  auto linear = make_linear(7);
  torch::nn::Sequential normed(linear, torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})));
  normed->to(device());
  const at::Tensor other = randn({kRows, 9}, 3);
  struct Case {
    const char* name;
    bool repeats;
    Use loss;
  };
  const std::vector<Case> cases = {
      {"sum", true, [](const auto& outputs) { return outputs[0].sum(); }},
      {"mean", true, [](const auto& outputs) { return outputs[0].mean(); }},
      {"sum over rows", true, [](const auto& outputs) { return outputs[0].mean(0).square().sum(); }},
      {"sum over columns", true, [](const auto& outputs) { return outputs[0].mean(1).square().sum(); }},
      {"transposed", false, [&](const auto& outputs) { return torch::matmul(outputs[0].t(), other).square().sum(); }},
      {"one row", false, [](const auto& outputs) { return outputs[0][2].exp().sum(); }},
      {"columns", false, [](const auto& outputs) { return outputs[0].slice(1, 2, 5).exp().sum(); }},
  };
  for (const Case& one : cases) {
    if (on_cuda() && one.repeats) continue;
    SCOPED_TRACE(one.name);
    expect_calls_equal_eager(linear, linear->parameters(), one.loss);
    expect_calls_equal_eager(normed, linear->parameters(), one.loss);
  }
}

TEST_P(OutputsTest, NeedNotAllReachTheLoss) {
  auto trunk = make_linear(), head = make_linear(3);
  const auto both = [trunk, head](const at::Tensor& x) mutable {
    const at::Tensor hidden = trunk(x).tanh();
    return std::tuple(hidden, hidden.exp(), head(hidden));
  };
  for (const std::size_t used : {0U, 1U, 2U}) {
    std::vector<at::Tensor> parameters = trunk->parameters();
    if (used == 2) parameters.push_back(head->weight);
    expect_calls_equal_eager(both, parameters, [used](const auto& outputs) { return outputs[used].square().sum(); });
  }
}

// Optimizers skip parameters without a gradient; with zeros their momentum would go on.
TEST_P(OutputsTest, ThatDoNotReachTheLossGiveNoGradientsToWhatOnlyTheyNeed) {
  auto trunk = make_linear(), head = make_linear(3);
  expect_calls_equal_eager([trunk, head](const at::Tensor& x) mutable { return std::tuple(trunk(x), head(x)); },
                           {trunk->weight, head->weight, head->bias},
                           [](const auto& outputs) { return outputs[0].square().sum(); });
}

TEST_P(OutputsTest, AreKeptByCloneAndOverwrittenByAlias) {
  const auto sine = [](const at::Tensor& x) { return x.sin(); };
  const at::Tensor x1 = randn({4}, 1), x2 = randn({4}, 2);
  GraphedCallable cloning = make_graphed_callable(sine, {x1}, {.output = OutputPolicy::clone});
  const at::Tensor kept = cloning(x1);
  (void)cloning(x2);
  EXPECT_TRUE(same(kept, x1.sin()));

  GraphedCallable aliasing = make_graphed_callable(sine, {x1});
  const at::Tensor first = aliasing(x1), second = aliasing(x2);
  EXPECT_EQ(first.data_ptr(), second.data_ptr());
  EXPECT_TRUE(same(first, x2.sin()));
}

TEST_P(OutputsTest, OverwrittenSinceAreRefusedByAutogradWhereABackwardReadsThem) {
  GraphedCallable graphed = make_graphed_callable([](const at::Tensor& x) { return x.sin(); }, {randn({4})});
  const at::Tensor weight = leaf({4}, 3);
  const at::Tensor loss = (graphed(randn({4}, 1)) * weight).sum();
  (void)graphed(randn({4}, 2));
  EXPECT_THAT(refusal<c10::Error>("an overwritten output in a backward", [&] { loss.backward(); }),
              HasSubstr("modified by an inplace operation"));
}

TEST_P(OutputsTest, AreCheckedForBeingCurrent) {
  auto linear = make_linear();
  GraphedCallable graphed = make_graphed_callable(linear, {leaf({6, 12}, 1)});
  const at::Tensor first = graphed(leaf({6, 12}, 2));
  graphed.check_current(first);
  first.sum().backward();
  graphed.check_current(first);
  const at::Tensor second = graphed(leaf({6, 12}, 3));
  graphed.check_current(second);
  EXPECT_THAT(refusal<ReplayError>("a stale output", [&] { graphed.check_current(first); }),
              AllOf(HasSubstr("a later call has overwritten"), HasSubstr("clone()")));
  EXPECT_THAT(refusal<UsageError>("a foreign tensor",
                                  [&] {
                                    graphed.check_current(randn({6, 12}));
                                  }),
              HasSubstr("no output of this callable"));
  EXPECT_THAT(refusal<UsageError>("a view of an output", [&] { graphed.check_current(second.view({-1})); }),
              HasSubstr("no output of this callable"));
}

TEST_P(OutputsTest, MayBeWrittenByTheCallerWhereBackwardDoesNotReadThem) {
  auto linear = make_linear();
  expect_calls_equal_eager(linear, linear->parameters(), [](const std::vector<at::Tensor>& outputs) {
    outputs[0].mul_(3).slice(1, 0, 4).zero_();
    const at::Tensor y = outputs[0].relu_();
    return (y * y).sum();
  });
}

TEST_P(OutputsTest, WrittenByTheCallerAreRefusedWhereBackwardReadsThem) {
  GraphedCallable graphed = make_graphed_callable([](const at::Tensor& x) { return x.sigmoid(); }, {leaf({4}, 1)});
  for (int call = 0; call < 2; ++call) {
    const at::Tensor y = graphed(leaf({4}, 2));
    const at::Tensor loss = y.mul_(2).sum();
    EXPECT_THAT(refusal<GuardError>("an output written before backward", [&] { loss.backward(); }),
                AllOf(HasSubstr("the tensor of output was written after the forward pass"), HasSubstr("clone()")));
  }
  EXPECT_EQ(graphed.in_flight(), 0);

  GraphedCallable views = make_graphed_callable(
      [](const at::Tensor& x) {
        const at::Tensor y = x * 2;
        return std::tuple(y, y.view({2, 2}));
      },
      {leaf({4}, 1)});
  const at::Tensor x = leaf({4}, 2);
  const auto outputs = views.call({&x, 1});
  EXPECT_THAT(refusal<c10::Error>("a view written that shares memory with another output", [&] { outputs[1].mul_(2); }),
              HasSubstr("is a view and is being modified inplace"));
}

TEST_P(OutputsTest, ThatAreCopiesMayBeWrittenInAnyCase) {
  GraphedCallable graphed = make_graphed_callable([](const at::Tensor& x) { return x.sigmoid(); }, {leaf({4}, 1)},
                                                  {.output = OutputPolicy::clone});
  const at::Tensor x = leaf({4}, 2), expected = leaf({4}, 2);
  graphed(x).mul_(2).sum().backward();
  (expected.sigmoid() * 2).sum().backward();
  EXPECT_TRUE(same(x.grad(), expected.grad()));
}

TEST_P(OutputsTest, MustContainATensor) {
  const at::Tensor elsewhere = torch::zeros({4}, device());
  const auto make = [](Callable original) {
    return [original] { (void)make_graphed_callable(original, {randn({4})}); };
  };
  EXPECT_THAT(refusal<UsageError>("no result", make([=](const at::Tensor& x) { elsewhere.add_(x); })),
              HasSubstr("returns no tensor"));
  EXPECT_THAT(refusal<UsageError>("a number as result", make([](const at::Tensor& x) { return (x * 2).dim(); })),
              AllOf(HasSubstr("returns no tensor"), HasSubstr("return the tensors that the caller needs")));
  EXPECT_TRUE(same(elsewhere, torch::zeros({4}, device())));
}

TEST_P(OutputsTest, MustBeOfTheSameStructureInEveryRun) {
  // Each differs in its second run, which is a warm-up or the capture itself.
  const auto make = [](const std::function<IValue(const at::Tensor&, std::int64_t)>& function, int warmup) {
    return [=] {
      const auto counting = [function, calls = std::int64_t{0}](const at::Tensor& x) mutable {
        return function(x, ++calls);
      };
      (void)make_graphed_callable(counting, {leaf({4}, 1)}, {.warmup = warmup});
    };
  };
  for (const int warmup : {1, 3}) {
    EXPECT_THAT(
        refusal<UsageError>("another number the second time",
                            make([](const at::Tensor& x, std::int64_t n) { return std::tuple(x * 2, n); }, warmup)),
        AllOf(HasSubstr("another structure in another run"), HasSubstr("output 1: captured 1, received 2")));
    EXPECT_THAT(refusal<UsageError>("a longer list the second time", make(
                                                                         [](const at::Tensor& x, std::int64_t n) {
                                                                           return std::vector<at::Tensor>(
                                                                               static_cast<std::size_t>(n), x * 2);
                                                                         },
                                                                         warmup)),
                HasSubstr("output: captured a list of 1, received a list of 2"));
    EXPECT_THAT(
        refusal<UsageError>("other outputs that require grad the second time",
                            make([](const at::Tensor& x,
                                    std::int64_t n) { return std::tuple(x * 2, n == 1 ? x.exp() : x.detach().exp()); },
                                 warmup)),
        HasSubstr("other outputs require grad"));
  }
}

}  // namespace
}  // namespace pianola::outputs_test
