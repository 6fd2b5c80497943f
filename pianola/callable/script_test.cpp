#include <pianola/callable/testing/twins.hpp>

#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/script.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::script_test {
namespace {

using c10::IValue;
using ::testing::AllOf;
using testing::clone_all;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::refusal;
using testing::same;

// TorchScript modules, compiled from source or loaded from a file.
class ScriptTest : public testing::CallableTest {
 protected:
  using Run = std::function<IValue(std::vector<IValue>)>;

  // TorchScript's executor profiles its first two runs, and then may run other kernels (fused ones, other formulas for
  // gradients). Eager and captured runs are not the same in number, so that both are to run what is written.
  void SetUp() override {
    CallableTest::SetUp();
    optimized_ = torch::jit::getGraphExecutorOptimize();
    torch::jit::setGraphExecutorOptimize(false);
  }
  void TearDown() override {
    torch::jit::setGraphExecutorOptimize(optimized_);
    CallableTest::TearDown();
  }

  static torch::jit::Module make_block(const std::string& name, std::int64_t from, std::int64_t to,
                                       std::uint64_t seed) {
    torch::jit::Module block(name);
    block.register_parameter("weight", randn({to, from}, seed) * 0.3, /*is_buffer=*/false);
    block.register_parameter("bias", randn({to}, seed + 1), /*is_buffer=*/false);
    if (!block.hasattr("training")) block.register_attribute("training", c10::BoolType::get(), true);
    block.define(R"(
        def forward(self, x):
            return torch.linear(x, self.weight, self.bias)
    )");
    return block;
  }

  // Two linear layers with batch norm and dropout in between: buffers, random numbers, training flags, control flow.
  static torch::jit::Module make_net() {
    torch::jit::Module net("Net");
    net.register_module("first", make_block("First", 12, 16, 1));
    net.register_module("second", make_block("Second", 16, 4, 3));
    net.register_buffer("mean", torch::zeros({16}, device()));
    net.register_buffer("variance", torch::ones({16}, device()));
    if (!net.hasattr("training")) net.register_attribute("training", c10::BoolType::get(), true);
    net.define(R"(
        def forward(self, x):
            y = self.first.forward(x)
            y = torch.batch_norm(y, None, None, self.mean, self.variance, self.training, 0.1, 1e-5, False)
            for _ in range(2):
                y = torch.tanh(y) * 1.5
            if self.training:
                y = torch.dropout(y, 0.25, True)
            return self.second.forward(y)
    )");
    net.to(device());
    for (const at::Tensor& parameter : net.parameters()) parameter.requires_grad_();
    return net;
  }

  // Through a file, as a deployed model comes.
  static torch::jit::Module reloaded(const torch::jit::Module& net) {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::string file = name.substr(0, name.find('/')) + std::string("_") + GetParam() + ".pt";
    file = (std::filesystem::temp_directory_path() / file).string();
    net.save(file);
    torch::jit::Module loaded = torch::jit::load(file, device());
    std::filesystem::remove(file);
    return loaded;
  }

  static NamedTensors state_of_script(const torch::jit::Module& net) {
    NamedTensors all;
    for (const auto& item : net.named_parameters()) {
      all.emplace_back(item.name, item.value);
      all.emplace_back(item.name + ".grad", item.value.grad());
    }
    for (const auto& item : net.named_buffers()) all.emplace_back(item.name, item.value);
    all.emplace_back("generator", state_of(generator()));
    return all;
  }

  static at::Tensor batch(std::uint64_t seed) { return randn({8, 12}, seed).requires_grad_(); }

  static NamedTensors train(const torch::jit::Module& net, const Run& run) {
    seed(9);
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : net.parameters()) parameters.push_back(parameter);
    testing::FusedAdam optimizer(parameters);
    NamedTensors made;
    for (std::uint64_t step = 0; step < 6; ++step) {
      for (const at::Tensor& parameter : parameters) {
        step % 2 == 0 ? parameter.mutable_grad().reset() : void(parameter.mutable_grad().zero_());
      }
      const at::Tensor x = batch(step + 10), y = run({x}).toTensor();
      (y * y).mean().backward();
      made.emplace_back("output", y.detach().clone());
      made.emplace_back("input gradient", x.grad());
      optimizer.step();
      for (const auto& tensor : clone_all(state_of_script(net))) made.push_back(tensor);
    }
    return made;
  }

  static void expect_training_equals_eager(const torch::jit::Module& eager, const torch::jit::Module& net) {
    const NamedTensors before = clone_all(state_of_script(net));
    GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
    EXPECT_EQ(graphed.info().parameters, 4U);
    expect_same(state_of_script(net), before, "after capture");
    const auto actual = train(net, [&](std::vector<IValue> given) { return graphed.forward(given); });
    expect_same(actual, train(eager, Callable(eager)));
  }

 private:
  bool optimized_ = true;
};
PIANOLA_ON_EVERY_DEVICE(ScriptTest);

TEST_P(ScriptTest, CompiledFromSourceTrainsAsInEager) { expect_training_equals_eager(make_net(), make_net()); }

TEST_P(ScriptTest, LoadedFromAFileTrainsAsInEager) { expect_training_equals_eager(make_net(), reloaded(make_net())); }

TEST_P(ScriptTest, ThatTheExecutorHasOptimizedTrainsAsInEager) {
  torch::jit::setGraphExecutorOptimize(true);
  const torch::jit::Module eager = make_net(), net = make_net();
  for (const torch::jit::Module& module : {eager, net}) {
    const Callable original(module);
    for (int run = 0; run < 4; ++run) {
      original({batch(2)}).toTensor().sum().backward();  // past the runs that are profiled
      for (const at::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
    }
    module.attr("mean").toTensor().zero_();
    module.attr("variance").toTensor().fill_(1);
  }
  seed(0);
  expect_training_equals_eager(eager, net);
}

TEST_P(ScriptTest, CompiledFunctionsRunAsInEager) {
  const auto unit = torch::jit::compile(R"(
      def fused(x, weight, power: int):
          return torch.sigmoid(x * weight) ** power, x - weight
  )");
  const Callable original([=](const at::Tensor& x, const at::Tensor& weight, std::int64_t power) {
    return unit->run_method("fused", x, weight, power);
  });
  GraphedCallable graphed = make_graphed_callable(original, {batch(1), batch(2), 3});
  for (std::uint64_t seed = 3; seed < 6; ++seed) {
    const auto through = [&](const Run& run) {
      const at::Tensor x = batch(seed), weight = batch(seed + 10);
      const auto entries = run({x, weight, 3}).toTupleRef().elements().vec();
      (entries[0].toTensor() * entries[1].toTensor()).sum().backward();
      return clone_all({{"first", entries[0].toTensor()},
                        {"second", entries[1].toTensor()},
                        {"gradient", x.grad()},
                        {"other gradient", weight.grad()}});
    };
    expect_same(through([&](std::vector<IValue> given) { return graphed.forward(given); }), through(original));
  }
}

TEST_P(ScriptTest, MapsListsAndNoneAreTakenAndReturned) {
  torch::jit::Module net("Structured");
  net.define(R"(
      def forward(self, inputs: Dict[str, Tensor], mask: Optional[Tensor], layers: List[Tensor]):
          y = inputs["x"] * layers[0] + layers[1]
          if mask is not None:
              y = y * mask
          return {"y": y, "double": y * 2}, layers, mask
  )");
  for (const bool masked : {false, true}) {
    const auto arguments = [&](std::uint64_t seed) {
      c10::Dict<std::string, at::Tensor> map;
      map.insert("x", batch(seed));
      return std::vector<IValue>{map, masked ? IValue(batch(seed + 1)) : IValue(),
                                 std::vector<at::Tensor>{batch(seed + 2), batch(seed + 3)}};
    };
    GraphedCallable graphed = make_graphed_callable(net, arguments(1));
    for (std::uint64_t seed = 10; seed < 40; seed += 10) {
      const auto through = [&](const Run& run) {
        const auto given = arguments(seed);
        const IValue value = run(given);
        const auto& entries = value.toTupleRef().elements();
        const auto map = entries[0].to<c10::Dict<std::string, at::Tensor>>();
        const auto layers = entries[1].toTensorVector();
        EXPECT_EQ(entries[2].isNone(), !masked);
        (map.at("double") * layers[0]).sum().backward();
        return clone_all({{"y", map.at("y")},
                          {"double", map.at("double")},
                          {"x", given[0].to<c10::Dict<std::string, at::Tensor>>().at("x").grad()},
                          {"layer 0", given[2].toTensorVector()[0].grad()},
                          {"layer 1", given[2].toTensorVector()[1].grad()}});
      };
      expect_same(through([&](std::vector<IValue> more) { return graphed.forward(more); }), through(Callable(net)));
    }
  }
}

TEST_P(ScriptTest, TrainingAndEvaluationGraphsFollowTheFlag) {
  const torch::jit::Module source = make_net();
  torch::jit::Module eager = reloaded(source), net = reloaded(source);
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)}, {.evaluation = true});
  EXPECT_TRUE(net.is_training());
  const auto calls = [](torch::jit::Module& module, const Run& run) {
    seed(9);
    NamedTensors made;
    for (std::uint64_t i = 0; i < 6; ++i) {
      const bool training = i % 3 != 1;
      module.train(training);
      const at::AutoGradMode grad_mode(training);
      const at::Tensor x = batch(i + 10), y = run({x}).toTensor();
      made.emplace_back("output", y.detach().clone());
      if (training) (y * y).sum().backward();
      for (const auto& tensor : clone_all(state_of_script(module))) made.push_back(tensor);
    }
    return made;
  };
  const auto actual = calls(net, [&](std::vector<IValue> given) { return graphed.forward(given); });
  expect_same(actual, calls(eager, Callable(eager)));
}

TEST_P(ScriptTest, FlagsThatChangedAreRefused) {
  torch::jit::Module net = make_net();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
  net.eval();
  EXPECT_THAT(refusal<GuardError>("a script in another mode", [&] { (void)graphed(batch(2)); }),
              AllOf(HasSubstr("the call is in evaluation mode with gradients"),
                    HasSubstr("captured in training mode with gradients")));
  net.train();
  net.attr("first").toModule().setattr("training", false);
  EXPECT_THAT(refusal<GuardError>("a submodule of a script in another mode", [&] { (void)graphed(batch(2)); }),
              HasSubstr("training flag of 'first': it was switched since the capture"));
  net.train();
  const at::Tensor x = batch(3);
  seed(4);
  const at::Tensor actual = graphed(x).clone();
  net.attr("mean").toTensor().zero_();
  seed(4);
  EXPECT_TRUE(same(actual, net.forward({x}).toTensor()));
}

TEST_P(ScriptTest, ParametersThatWereReplacedAreRefusedByName) {
  torch::jit::Module net = make_net();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
  torch::jit::Module second = net.attr("second").toModule();
  const IValue original = second.attr("weight");
  second.setattr("weight", original.toTensor().detach().clone().requires_grad_());
  EXPECT_THAT(refusal<GuardError>("a parameter set anew", [&] { (void)graphed(batch(2)); }),
              AllOf(HasSubstr("parameter 'second.weight': the module has another tensor now"),
                    HasSubstr("nothing was launched")));
  second.setattr("weight", original);
  net.attr("first").toModule().attr("bias").toTensor().set_data(randn({16}));
  EXPECT_THAT(refusal<GuardError>("a parameter with other data", [&] { (void)graphed(batch(2)); }),
              AllOf(HasSubstr("'first.bias'"), HasSubstr("its memory was replaced")));
}

TEST_P(ScriptTest, BuffersThatWereReplacedAreRefusedByName) {
  torch::jit::Module net = make_net();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
  net.setattr("variance", torch::full({16}, 2.0, device()));
  EXPECT_THAT(refusal<GuardError>("a buffer set anew", [&] { (void)graphed(batch(2)); }), HasSubstr("'variance'"));
}

TEST_P(ScriptTest, HostReadsInTheSourceAreRefused) {
  torch::jit::Module net("Reads");
  net.define(R"(
      def forward(self, x):
          if bool(x.sum() > 0):
              return x * 2
          return x * 3
  )");
  EXPECT_THAT(
      refusal<CaptureError>("a script that reads a tensor", [&] { (void)make_graphed_callable(net, {batch(1)}); }),
      HasSubstr("host"));
}

}  // namespace
}  // namespace pianola::script_test
