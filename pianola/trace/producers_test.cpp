// What the tape and the parallel replay build on: every input of every operation can be traced back.
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/trace_of.hpp>

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <set>

namespace pianola::producers_test {
namespace {

constexpr std::int64_t kBatch = 2, kLength = 8, kWidth = 16, kHeads = 2;

class Producers : public testing::DeviceTest {
 protected:
  at::Tensor weight(at::IntArrayRef sizes) {
    at::Tensor made = (randn(sizes, ++seed_) * 0.1).requires_grad_();
    parameters_.push_back(made);
    return made;
  }

  at::Tensor buffer(const at::Tensor& values) {
    existed_.insert(trace::storage_of(values));
    return values;
  }

  at::Tensor attention(const at::Tensor& x, double dropout) {
    const auto heads = [&](const at::Tensor& y) {
      return y.view({kBatch, kLength, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const std::vector<at::Tensor> qkv = at::linear(x, in_, in_bias_).chunk(3, -1);
    const at::Tensor mixed = at::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), {}, dropout,
                                                              /*is_causal=*/true);
    return at::linear(mixed.transpose(1, 2).reshape({kBatch, kLength, kWidth}), out_);
  }

  at::Tensor loss(double dropout) {
    at::Tensor x = at::embedding(table_, tokens_);
    x = x + at::dropout(attention(at::layer_norm(x, {kWidth}, scale_, shift_), dropout), 0.1, true);
    x = x + at::linear(at::gelu(at::linear(x, up_)), down_);
    at::Tensor image = at::conv2d(x.view({kBatch, 1, kLength, kWidth}), kernel_, {}, 1, 1);
    image = at::batch_norm(image, bn_scale_, bn_shift_, mean_, var_, true, 0.1, 1e-5, true) / 2.0;
    return at::cross_entropy_loss(image.flatten(0, 2), targets_);
  }

  // The first input without a producer, described; empty where each has one.
  std::string orphan(const OpTrace& trace) {
    std::set<const void*> produced = existed_;
    for (const OpRecord& op : trace.ops()) {
      for (const TensorRecord& in : trace.inputs(op)) {
        const bool wrapped_number = in.rank == 0 && in.device.is_cpu() && in.dtype == at::kDouble;
        if (!produced.contains(in.storage) && !wrapped_number) {
          return trace.name(op) + " argument " + std::to_string(in.argument) + (op.backward ? " in backward" : "");
        }
      }
      for (const TensorRecord& out : trace.outputs(op)) produced.insert(out.storage);
    }
    return "";
  }

  std::vector<at::Tensor> parameters_;
  std::set<const void*> existed_;
  std::uint64_t seed_ = 0;
  at::Tensor table_, in_, in_bias_, out_, scale_, shift_, up_, down_, kernel_, bn_scale_, bn_shift_, mean_, var_,
      tokens_, targets_;

  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    table_ = weight({32, kWidth}), in_ = weight({3 * kWidth, kWidth}), in_bias_ = weight({3 * kWidth});
    out_ = weight({kWidth, kWidth}), scale_ = weight({kWidth}), shift_ = weight({kWidth});
    up_ = weight({4 * kWidth, kWidth}), down_ = weight({kWidth, 4 * kWidth});
    kernel_ = weight({3, 1, 3, 3}), bn_scale_ = weight({3}), bn_shift_ = weight({3});
    mean_ = buffer(at::zeros({3}, device())), var_ = buffer(at::ones({3}, device()));
    tokens_ = buffer(randint(32, {kBatch, kLength})), targets_ = buffer(randint(kWidth, {kBatch * 3 * kLength}));
    for (const at::Tensor& parameter : parameters_) existed_.insert(trace::storage_of(parameter));
  }
};
PIANOLA_ON_EVERY_DEVICE(Producers);

TEST_P(Producers, ExistForEveryInputOfATransformerBlockInForwardAndBackward) {
  for (const double dropout : {0.0, 0.1}) {
    const OpTrace trace = testing::trace_of([&] { torch::autograd::grad({loss(dropout)}, parameters_); });
    std::size_t backward = 0;
    for (const OpRecord& op : trace.ops()) backward += op.backward ? 1 : 0;
    EXPECT_GT(backward, 30U) << "the backward was not seen";
    EXPECT_EQ(orphan(trace), "") << "attention's dropout is " << dropout;
  }
}

TEST_P(Producers, AgreeWithWhatTheTraceCallsMadeInStep) {
  const OpTrace trace = testing::trace_of([&] { torch::autograd::grad({loss(0.1)}, parameters_); });
  for (const OpRecord& op : trace.ops()) {
    for (const TensorRecord& in : trace.inputs(op)) {
      const bool wrapped_number = in.rank == 0 && in.device.is_cpu() && in.dtype == at::kDouble;
      EXPECT_TRUE(wrapped_number || in.made_in_step != existed_.contains(in.storage)) << trace.name(op);
    }
  }
}

// What in-place operations overwrite, their backward reads from a clone that they make inside.
TEST_P(Producers, ExistForWhatInPlaceOperationsSave) {
  const auto step = [&] {
    at::Tensor x = at::linear(at::embedding(table_, tokens_), up_);
    at::silu_(x), at::hardswish_(x), x.mul_(x.detach().cos() * shift_[0]).sin_();
    x.narrow(0, 0, 1).mul_(scale_[0]).pow_(2);
    std::vector<at::Tensor> parts = {x * 1, x * 2};
    at::_foreach_mul_(parts, std::vector<at::Tensor>{x.sin(), x.cos()});
    torch::autograd::grad({(parts[0] + parts[1]).sum()}, {table_, up_, shift_, scale_});
  };
  const OpTrace trace = testing::trace_of(step);
  EXPECT_EQ(orphan(trace), "");
  std::size_t clones = 0;
  for (const OpRecord& op : trace.ops()) {
    if (op.around < 0) continue;
    ++clones;
    EXPECT_EQ(trace.name(op), "aten::clone");
    const OpRecord& around = trace.ops()[static_cast<std::size_t>(op.around)];
    EXPECT_FALSE(op.opaque || around.opaque);
  }
  EXPECT_GE(clones, 7U);
}

// The test above would pass if it forgave everything.
TEST_P(Producers, AreMissedWhereATensorComesFromNowhere) {
  const at::Tensor unknown = randn({kWidth});
  const OpTrace trace = testing::trace_of([&] { at::gelu(unknown); });
  EXPECT_EQ(orphan(trace), "aten::gelu argument 0");
}

}  // namespace
}  // namespace pianola::producers_test
