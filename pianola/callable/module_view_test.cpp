#include <pianola/callable/graphed_callable.hpp>
#include <pianola/callable/known_tensor.hpp>
#include <pianola/callable/module_view.hpp>
#include <pianola/core/error.hpp>

#include <pianola/callable/testing/twins.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::module_view_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;

// A module of a kind of its own: one layer with a flag that switches its activation off.
struct Layer {
  at::Tensor weight;
  bool training = true;
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor y = torch::matmul(x, weight);
    return training ? torch::tanh(y) : y;
  }
};

class LayerView final : public ModuleView {
 public:
  explicit LayerView(std::shared_ptr<Layer> layer)
      : layer_(std::move(layer)), weight_(KnownTensor::parameter("weight", layer_->weight)) {}

  [[nodiscard]] bool training() const override { return layer_->training; }
  void set_training(bool training) const override { layer_->training = training; }
  [[nodiscard]] std::vector<bool> flags() const override { return {layer_->training}; }
  void set_flags(const std::vector<bool>& flags) const override { layer_->training = flags[0]; }
  [[nodiscard]] bool has_flags(const std::vector<bool>& flags) const override { return layer_->training == flags[0]; }
  [[nodiscard]] std::vector<std::string> differing_flags(const std::vector<bool>& flags) const override {
    return has_flags(flags) ? std::vector<std::string>() : std::vector<std::string>{""};
  }
  [[nodiscard]] bool has_its_parameters() const override { return weight_.is(layer_->weight); }
  [[nodiscard]] std::vector<std::string> parameter_differences() const override {
    const auto difference = weight_.difference(layer_->weight);
    return difference ? std::vector<std::string>{*difference} : std::vector<std::string>();
  }
  [[nodiscard]] std::vector<at::Tensor> differentiable_parameters() const override { return {layer_->weight}; }
  [[nodiscard]] std::optional<std::string> name_of(const at::Tensor& parameter) const override {
    return parameter.is_same(layer_->weight) ? std::optional(weight_.name()) : std::nullopt;
  }

 private:
  std::shared_ptr<Layer> layer_;
  KnownTensor weight_;
};

class ModuleViewTest : public testing::CallableTest {
 protected:
  static std::shared_ptr<Layer> make_layer() {
    return std::make_shared<Layer>(Layer{.weight = randn({12, 12}, 3).requires_grad_()});
  }
  static Callable callable_of(const std::shared_ptr<Layer>& layer) {
    return Callable::of_module(
        [layer](const std::vector<c10::IValue>& inputs) { return layer->forward(inputs[0].toTensor()); },
        [layer] { return std::make_unique<LayerView>(layer); });
  }
};
PIANOLA_ON_EVERY_DEVICE(ModuleViewTest);

TEST_P(ModuleViewTest, ModulesOfAnyKindTrainAndAreEvaluated) {
  const auto eager = make_layer(), layer = make_layer();
  GraphedCallable graphed = make_graphed_callable(callable_of(layer), {randn({8, 12})}, {.evaluation = true});
  EXPECT_TRUE(layer->training) << "after the evaluation mode was captured";
  for (std::uint64_t i = 0; i < 3; ++i) {
    const at::Tensor x = randn({8, 12}, i);
    eager->forward(x).square().sum().backward();
    graphed(x).square().sum().backward();
    EXPECT_TRUE(same(layer->weight.grad(), eager->weight.grad()));

    eager->training = layer->training = false;
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(same(graphed(x), eager->forward(x)));
    eager->training = layer->training = true;
  }
}

TEST_P(ModuleViewTest, ModulesOfAnyKindAreGuarded) {
  const auto layer = make_layer();
  GraphedCallable graphed = make_graphed_callable(callable_of(layer), {randn({8, 12})});
  layer->weight.set_data(layer->weight.detach().clone());
  EXPECT_THAT(refusal<GuardError>("replaced data of another kind's parameter",
                                  [&] {
                                    (void)graphed(randn({8, 12}));
                                  }),
              AllOf(HasSubstr("'weight'"), HasSubstr("its memory was replaced")));
  layer->weight = randn({12, 12}, 4).requires_grad_();
  EXPECT_THAT(refusal<GuardError>("replaced parameter of another kind",
                                  [&] {
                                    (void)graphed(randn({8, 12}));
                                  }),
              HasSubstr("parameter 'weight': the module has another tensor now"));
}

TEST_P(ModuleViewTest, AKnownTensorTellsWhatBecameOfIt) {
  const at::Tensor tensor = randn({4}), other = randn({4});
  const KnownTensor parameter = KnownTensor::parameter("a", tensor), buffer = KnownTensor::buffer("b", tensor);
  EXPECT_TRUE(parameter.is(tensor) && buffer.is(tensor));
  EXPECT_EQ(parameter.difference(tensor), std::nullopt);
  EXPECT_EQ(parameter.difference(other), "parameter 'a': the module has another tensor now");
  tensor.set_data(other);
  EXPECT_TRUE(parameter.is(tensor)) << "the memory of parameters is watched elsewhere";
  EXPECT_EQ(buffer.difference(tensor),
            "buffer 'b': its memory was replaced (.data = ..., set_() or a resized storage)");
  tensor.requires_grad_();
  EXPECT_EQ(parameter.difference(tensor), "parameter 'a': requires grad: captured no, now yes");
  EXPECT_THAT(refusal<UsageError>("known buffer that requires grad", [&] { (void)KnownTensor::buffer("b", tensor); }),
              HasSubstr("buffer 'b' requires grad"));
}

}  // namespace
}  // namespace pianola::module_view_test
