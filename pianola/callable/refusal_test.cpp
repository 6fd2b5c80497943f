#include <pianola/callable/graphed_callable.hpp>
#include <pianola/core/error.hpp>

#include <pianola/callable/testing/twins.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace pianola::refusal_test {
namespace {

using ::testing::AllOf;
using testing::clone_all;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::MlpNet;
using testing::NamedTensors;
using testing::refusal;
using testing::same;

// What cannot be captured, or must not be replayed, and that everything is as before then.
class CallableRefusalTest : public testing::CallableTest {
 protected:
  static at::Tensor sample() { return randn({8, 12}).requires_grad_(); }

  static std::size_t device_bytes() {
#if PIANOLA_WITH_CUDA
    if (on_cuda()) {
      synchronize();
      return static_cast<std::size_t>(c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current);
    }
#endif
    return 0;
  }
};
PIANOLA_ON_EVERY_DEVICE(CallableRefusalTest);

TEST_P(CallableRefusalTest, OptionsOutOfRange) {
  const auto net = make_net<MlpNet>();
  const auto make = [&](CallableOptions options) {
    return [=] { (void)make_graphed_callable(net, {sample()}, options); };
  };
  EXPECT_THAT(refusal<UsageError>("no warm-up", make({.warmup = 0})), HasSubstr("warmup must be 1 or more, got 0"));
  EXPECT_THAT(refusal<UsageError>("no slots", make({.slots = 0})), HasSubstr("slots must be 1 or more, got 0"));
  EXPECT_THAT(refusal<UsageError>("number of capture hooks", make({.capture_hooks = {{}, {}}})),
              HasSubstr("got 2 capture_hooks for 1 callable"));
  EXPECT_THAT(refusal<UsageError>("number of replay hooks", make({.replay_hooks = {{}, {}}})),
              HasSubstr("got 2 replay_hooks for 1 callable"));
  EXPECT_THAT(refusal<UsageError>("foreign tensor through autograd", make({.through_autograd = {randn({2})}})),
              HasSubstr("no parameter that a callable differentiates"));
  EXPECT_THAT(refusal<UsageError>("no callables", [] { (void)make_graphed_callables({}, {}); }),
              HasSubstr("no callable was given"));
  EXPECT_THAT(refusal<UsageError>("no tensors", [&] { (void)make_graphed_callable(net, {}); }),
              HasSubstr("no sample holds a tensor"));
  EXPECT_THAT(refusal<UsageError>("evaluation of a function",
                                  [] {
                                    (void)make_graphed_callable([](const at::Tensor& x) { return x + 1; }, {randn({2})},
                                                                {.evaluation = true});
                                  }),
              HasSubstr("a function, which has no evaluation mode"));
}

TEST_P(CallableRefusalTest, ABufferThatRequiresGrad) {
  struct Net : torch::nn::Module {
    Net() { scale = register_buffer("scale", torch::ones({12}).requires_grad_()); }
    torch::Tensor forward(const torch::Tensor& x) { return x * scale; }
    torch::Tensor scale;
  };
  const std::string message = refusal<UsageError>("buffer that requires grad", [] {
    (void)make_graphed_callable(std::make_shared<Net>(), {torch::randn({8, 12})});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("buffer 'scale' requires grad"), HasSubstr("fix:")));
}

TEST_P(CallableRefusalTest, ParameterDataThatWasReplaced) {
  const auto net = make_net<MlpNet>();
  GraphedCallable graphed = make_graphed_callable(net, {sample()});
  (void)graphed(sample());
  const at::Tensor data = net->first->weight.detach();
  net->first->weight.set_data(data.clone());
  const std::string message = refusal<GuardError>("replaced parameter data", [&] { (void)graphed(sample()); });
  EXPECT_THAT(message, AllOf(HasSubstr("'first.weight'"), HasSubstr("[24, 12]"), HasSubstr("replaced"),
                             HasSubstr("nothing was launched")));
  net->first->weight.set_data(data);
  (void)graphed(sample());
}

TEST_P(CallableRefusalTest, AParameterThatIsTransposedInPlace) {
  const auto square = std::make_shared<torch::nn::LinearImpl>(12, 12);
  square->to(device());
  GraphedCallable graphed = make_graphed_callable(square, {sample()});
  {
    const at::NoGradGuard no_grad;
    square->weight.t_();
  }
  EXPECT_THAT(refusal<GuardError>("a parameter transposed in place", [&] { (void)graphed(sample()); }),
              HasSubstr("a Float parameter 'weight' of shape [12, 12]: its shape or strides were changed in place"));
}

TEST_P(CallableRefusalTest, ABufferThatIsTransposedInPlace) {
  struct Net : torch::nn::Module {
    Net() { scale = register_buffer("scale", randn({12, 12})); }
    torch::Tensor forward(const torch::Tensor& x) { return x.mm(scale); }
    torch::Tensor scale;
  };
  const auto net = make_net<Net>();
  GraphedCallable graphed = make_graphed_callable(net, {sample()});
  net->scale.t_();
  EXPECT_THAT(refusal<GuardError>("a buffer transposed in place", [&] { (void)graphed(sample()); }),
              HasSubstr("buffer 'scale': its shape or strides were changed in place"));
  net->scale.t_();
  EXPECT_TRUE(same(graphed(sample()), net->forward(sample())));
}

TEST_P(CallableRefusalTest, AParameterWhoseMemoryWasFreed) {
  const auto net = make_net<MlpNet>();
  GraphedCallable graphed = make_graphed_callable(net, {sample()});
  net->second->bias.storage().set_nbytes(0);
  net->second->bias.storage().set_data_ptr_noswap(at::DataPtr(nullptr, device()));
  EXPECT_THAT(refusal<GuardError>("freed parameter", [&] { (void)graphed(sample()); }),
              AllOf(HasSubstr("'second.bias'"), HasSubstr("freed")));
}

TEST_P(CallableRefusalTest, AParameterThatWasRegisteredAnew) {
  struct Net : torch::nn::Module {
    Net() { weight = register_parameter("weight", torch::ones({12})); }
    void renew() { weight = parameters_["weight"] = torch::ones_like(weight).detach().requires_grad_(); }
    torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
    torch::Tensor weight;
  };
  const auto net = make_net<Net>();
  GraphedCallable graphed = make_graphed_callable(net, {sample()});
  net->renew();
  EXPECT_THAT(refusal<GuardError>("parameter registered anew", [&] { (void)graphed(sample()); }),
              AllOf(HasSubstr("parameter 'weight'"), HasSubstr("another tensor now")));
}

TEST_P(CallableRefusalTest, AWrongInputInEveryWayAtOnce) {
  const auto net = make_net<MlpNet>();
  GraphedCallable graphed = make_graphed_callable(net, {sample()});
  const std::string message = refusal<GuardError>("input that differs", [&] {
    (void)graphed(torch::zeros({4, 12}, device()).to(at::kDouble));
  });
  EXPECT_THAT(message, AllOf(HasSubstr("input 0: shape: captured [8, 12], received [4, 12]"),
                             HasSubstr("input 0: dtype: captured Float, received Double"),
                             HasSubstr("input 0: requires grad: captured yes, received no")));
  EXPECT_EQ(graphed.in_flight(), 0);
}

TEST_P(CallableRefusalTest, AnInputOfTheStaticBufferWrittenBeforeBackward) {
  const auto net = make_net<MlpNet>();
  GraphedCallable graphed = make_graphed_callable(net, {randn({8, 12})});
  const std::vector<at::Tensor> buffers = graphed.static_inputs();
  buffers[0].copy_(randn({8, 12}));
  const at::Tensor out = graphed(buffers[0]);
  buffers[0].zero_();
  EXPECT_THAT(refusal<GuardError>("static input written too early", [&] { out.sum().backward(); }),
              AllOf(HasSubstr("the static buffer of input 0"), HasSubstr("needs what it held")));
}

TEST_P(CallableRefusalTest, ACallInsideACapture) {
  const auto net = make_net<MlpNet>();
  GraphedCallable graphed = make_graphed_callable(net, {sample()});
  Graph graph(device());
  EXPECT_THAT(refusal<UsageError>("call inside a capture", [&] { graph.capture([&] { (void)graphed(sample()); }); }),
              HasSubstr("graphs do not nest"));
}

TEST_P(CallableRefusalTest, AThirdOfFiveCallablesThatCannotBeCaptured) {
  std::vector<std::shared_ptr<MlpNet>> nets;
  for (int i = 0; i < 5; ++i) nets.push_back(make_net<MlpNet>());
  for (const auto& net : nets) net->forward(sample()).sum().backward();
  const auto state = [&] {
    NamedTensors all;
    for (const auto& net : nets) {
      for (const auto& tensor : state_of_module(*net)) all.push_back(tensor);
    }
    return all;
  };
  int hook_calls = 0;
  nets[0]->first->weight.register_hook([&](const at::Tensor& /*gradient*/) { ++hook_calls; });
  const at::Tensor gradient = nets[3]->first->weight.grad();
  const NamedTensors before = clone_all(state());
  std::vector<Callable> callables = {nets[0], nets[1],
                                     [&](const at::Tensor& x) {
                                       const at::Tensor y = nets[2]->forward(x);
                                       return y * y.sum().item<float>();
                                     },
                                     nets[3], nets[4]};
  const std::vector<std::vector<c10::IValue>> samples(5, {sample()});
  std::size_t bytes = 0;
  for (int attempt = 0; attempt < 4; ++attempt) {
    if (attempt == 1) bytes = device_bytes();  // the first one fills caches
    const std::string message =
        refusal<CaptureError>("third of five callables", [&] { (void)make_graphed_callables(callables, samples); });
    EXPECT_THAT(message, AllOf(HasSubstr("aten::item"), HasSubstr("callable 3"), HasSubstr("refusal_test.cpp")));
    expect_same(state(), before, "after a failed capture");
  }
  EXPECT_EQ(device_bytes(), bytes);
  EXPECT_TRUE(nets[3]->first->weight.grad().is_same(gradient));
  EXPECT_EQ(hook_calls, 0);
  nets[0]->forward(sample()).sum().backward();
  EXPECT_EQ(hook_calls, 1) << "the hook is back";
  callables[2] = nets[2];
  auto graphed = make_graphed_callables(callables, samples);
  EXPECT_TRUE(same(graphed[2](sample()), nets[2]->forward(sample())));
}

TEST_P(CallableRefusalTest, AnErrorOfTheUsersOwnPassesUnchanged) {
  const auto net = make_net<MlpNet>();
  const NamedTensors before = clone_all(state_of_module(*net));
  int runs = 0;
  for (const int failing : {1, 3, 4}) {  // in warm-up, and while the forward is captured
    runs = 0;
    EXPECT_THROW((void)make_graphed_callable(
                     [&](const at::Tensor& x) {
                       if (++runs == failing) throw std::domain_error("mine");
                       return net->forward(x);
                     },
                     {sample()}),
                 std::domain_error);
    expect_same(state_of_module(*net), before, "after run " + std::to_string(failing));
  }
}

TEST_P(CallableRefusalTest, ResetReturnsAllMemory) {
  const auto net = make_net<MlpNet>();
  const auto use = [&] {
    GraphedCallable graphed = make_graphed_callable(net, {sample()}, {.slots = 2});
    graphed(sample()).sum().backward();
    graphed.reset();
    net->zero_grad(/*set_to_none=*/true);
    return device_bytes();
  };
  const std::size_t first = use();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(use(), first);
}

TEST_P(CallableRefusalTest, HooksRunAroundWarmUpAndCaptureAndAreNotRecorded) {
  const auto net = make_net<MlpNet>();
  std::string log;
  at::Tensor counter = torch::zeros({}, device());
  const auto note = [&](const char* text) {
    return [&log, counter, text] {
      log += text;
      counter.add_(1);
    };
  };
  const auto hooks = [&](const char* forward, const char* after, const char* backward, const char* behind) {
    return PassHooks{.before_forward = note(forward),
                     .after_forward = note(after),
                     .before_backward = note(backward),
                     .after_backward = note(behind)};
  };
  GraphedCallable graphed = make_graphed_callable(net, {sample()},
                                                  {.warmup = 1,
                                                   .pre_warmup = note("["),
                                                   .post_warmup = note("]"),
                                                   .capture_hooks = {hooks("f", "F", "b", "B")},
                                                   .replay_hooks = {hooks("r", "R", "s", "S")}});
  EXPECT_EQ(log, "[fFbB]fFbB");
  const float count = counter.item<float>();
  graphed(sample()).sum().backward();
  EXPECT_EQ(log, "[fFbB]fFbBrRsS");
  EXPECT_EQ(counter.item<float>(), count + 4);
}

}  // namespace
}  // namespace pianola::refusal_test
