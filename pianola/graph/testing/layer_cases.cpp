#include <pianola/graph/testing/ops_case.hpp>
#include <pianola/trace/testing/autocast.hpp>

#include <ATen/ATen.h>

namespace pianola::testing {
namespace {

Tensors autocast_layers(const Inputs& in, bool cache) {
  const AutocastRegion on(in.x.device().type(), cache);
  const at::Tensor h = at::linear(in.x, in.w, in.v);
  const at::Tensor again = at::linear(at::gelu(h), in.w, in.v);  // the cast of w is cached
  return {again, at::layer_norm(again, {8}, in.v), at::cross_entropy_loss(again, in.labels)};
}

Tensors attention(const Inputs& in, bool causal, double dropout) {
  const auto heads = [&](const at::Tensor& projected) { return projected.view({2, 4, 2, 4}).transpose(1, 2); };
  const at::Tensor q = heads(at::matmul(in.sequence, in.w)), k = heads(in.sequence), v = heads(in.sequence * in.v);
  return {at::scaled_dot_product_attention(q, k, v, {}, dropout, causal).transpose(1, 2).reshape({2, 4, 8})};
}

}  // namespace

// Layers, activations, losses, and random numbers.
const std::vector<OpsCase>& layer_cases() {
  static const std::vector<OpsCase> cases = {
      {"Relu",
       [](const Inputs& in) {
         return Tensors{at::relu(in.x), at::leaky_relu(in.y, 0.1), at::elu(in.x)};
       }},
      {"Gelu",
       [](const Inputs& in) {
         return Tensors{at::gelu(in.x), at::gelu(in.y, "tanh")};
       }},
      {"SigmoidSilu",
       [](const Inputs& in) {
         return Tensors{at::sigmoid(in.x), at::silu(in.y), at::softplus(in.x)};
       }},
      {"Glu", [](const Inputs& in) { return Tensors{at::glu(in.x, 1)}; }},
      {"Prelu", [](const Inputs& in) { return Tensors{at::prelu(in.x, in.v)}; }},
      {"Softmax",
       [](const Inputs& in) {
         return Tensors{at::softmax(in.x, 1), at::log_softmax(in.y, 0)};
       }},
      {"SoftmaxToDouble", [](const Inputs& in) { return Tensors{at::softmax(in.x, 1, at::kDouble)}; }},
      {"Linear", [](const Inputs& in) { return Tensors{at::linear(in.sequence, in.w, in.v)}; }},
      {"Conv2d", [](const Inputs& in) { return Tensors{at::conv2d(in.image, in.kernel, in.v.narrow(0, 0, 4), 1, 1)}; }},
      {"Conv2dStridedGrouped",
       [](const Inputs& in) { return Tensors{at::conv2d(in.image, in.kernel.narrow(1, 0, 2), {}, 2, 1, 1, 2)}; }},
      {"ConvTransposed", [](const Inputs& in) { return Tensors{at::conv_transpose2d(in.image, in.kernel, {}, 2)}; }},
      {"MaxPool", [](const Inputs& in) { return Tensors{at::max_pool2d(in.image, 2)}; }},
      {"MaxPool1dOfWhatWantsNoGradient",
       [](const Inputs& in) { return Tensors{at::max_pool1d(in.x.detach() * 2, 2)}; }},
      {"AvgPool",
       [](const Inputs& in) {
         return Tensors{at::avg_pool2d(in.image, 2), at::adaptive_avg_pool2d(in.image, {1, 1})};
       }},
      {"Upsample",
       [](const Inputs& in) {
         return Tensors{at::upsample_nearest2d(in.image, {12, 12})};
       }},
      {"Pad",
       [](const Inputs& in) {
         return Tensors{at::constant_pad_nd(in.image, {1, 1, 2, 0}, 0.5)};
       }},
      {"BatchNormTraining",
       [](const Inputs& in) {
         const at::Tensor mean = in.buffer.select(1, 0).contiguous();
         const at::Tensor y =
             at::batch_norm(in.image, {}, {}, in.statistic, mean.abs_().add_(1), true, 0.1, 1e-5, true);
         return Tensors{y, mean, in.statistic + 0};
       }},
      {"BatchNormEvaluation",
       [](const Inputs& in) {
         return Tensors{at::batch_norm(in.image, {}, {}, in.statistic, in.statistic, false, 0.1, 1e-5, true)};
       }},
      {"GroupNorm",
       [](const Inputs& in) {
         return Tensors{at::group_norm(in.image, 2, in.v.narrow(0, 0, 4), in.v.narrow(0, 4, 4))};
       }},
      {"LayerNorm", [](const Inputs& in) { return Tensors{at::layer_norm(in.x, {8}, in.v, in.w[0])}; }},
      {"RmsNorm", [](const Inputs& in) { return Tensors{at::rms_norm(in.x, {8}, in.v)}; }},
      {"InstanceNorm",
       [](const Inputs& in) { return Tensors{at::instance_norm(in.image, {}, {}, {}, {}, true, 0.1, 1e-5, false)}; }},
      {"Embedding", [](const Inputs& in) { return Tensors{at::embedding(in.w, in.labels)}; }},
      {"Attention", [](const Inputs& in) { return attention(in, false, 0); }},
      {"AttentionCausal", [](const Inputs& in) { return attention(in, true, 0); }},
      {"AttentionDropout", [](const Inputs& in) { return attention(in, true, 0.2); }},
      {"CrossEntropy",
       [](const Inputs& in) {
         return Tensors{at::cross_entropy_loss(in.x, in.labels),
                        at::cross_entropy_loss(in.y, in.labels, {}, at::Reduction::Sum, 2, 0.1)};
       }},
      {"NllLoss", [](const Inputs& in) { return Tensors{at::nll_loss(at::log_softmax(in.x, 1), in.labels)}; }},
      {"MseL1Huber",
       [](const Inputs& in) {
         return Tensors{at::mse_loss(in.x, in.y), at::l1_loss(in.x, in.y), at::huber_loss(in.x, in.y)};
       }},
      {"BinaryCrossEntropy",
       [](const Inputs& in) { return Tensors{at::binary_cross_entropy_with_logits(in.x, in.mask.to(at::kFloat))}; }},
      {"Dropout",
       [](const Inputs& in) {
         return Tensors{at::dropout(in.x, 0.4, true), at::dropout(in.y, 0.4, false)};
       }},
      {"DropoutInPlace",
       [](const Inputs& in) {
         at::Tensor target = in.buffer;
         at::dropout_(target, 0.4, true);
         return Tensors{in.buffer + 0};
       }},
      {"RandomFactories",
       [](const Inputs& in) {
         const auto options = in.x.options().requires_grad(false);
         return Tensors{at::rand({5}, options), at::randn({5}, options), at::randint(9, {5}, options.dtype(at::kLong)),
                        at::rand_like(in.x), at::randn_like(in.y)};
       }},
      {"RandomPermutation", [](const Inputs& in) { return Tensors{at::randperm(6, in.labels.options())}; }},
      {"RandomInPlace",
       [](const Inputs& in) {
         in.buffer.uniform_(-1, 1).add_(at::empty_like(in.buffer).normal_());
         in.statistic.exponential_();
         return Tensors{at::bernoulli(in.buffer.sigmoid())};
       }},
      {"Multinomial",
       [](const Inputs& in) { return Tensors{at::multinomial(at::softmax(in.x.detach(), 1), 3, true)}; }},
      {"AutocastWithCache", [](const Inputs& in) { return autocast_layers(in, true); }},
      {"AutocastWithoutCache", [](const Inputs& in) { return autocast_layers(in, false); }},
  };
  return cases;
}

}  // namespace pianola::testing
