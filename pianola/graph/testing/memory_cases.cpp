#include <pianola/graph/testing/ops_case.hpp>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

namespace pianola::testing {

// Views, copies, casts, indexing, writes in place and into `out`, and tensors made in the step.
const std::vector<OpsCase>& memory_cases() {
  static const std::vector<OpsCase> cases = {
      {"Views",
       [](const Inputs& in) {
         return Tensors{in.x.t() * 2,
                        in.x.view({2, 16}) + 1,
                        in.x.select(0, 1).exp(),
                        in.x.slice(1, 1, 7, 2) * 3,
                        in.sequence.permute({2, 0, 1}).reshape({-1}) + 0,
                        in.x.unsqueeze(1).expand({4, 3, 8}) * 1};
       }},
      {"ViewsReturned",
       [](const Inputs& in) {
         const at::Tensor y = in.x * 2;
         return Tensors{y, y.t(), y[1], y.narrow(1, 2, 3)};
       }},
      {"ViewsOfInputsReturned",
       [](const Inputs& in) {
         return Tensors{in.x.t(), in.y.view({-1}), in.v.expand({3, 8})};
       }},
      {"Diagonal",
       [](const Inputs& in) {
         return Tensors{in.w.diagonal() * 2, at::tril(in.w), at::triu(in.w, 1), at::diag_embed(in.v)};
       }},
      {"Unfold",
       [](const Inputs& in) {
         return Tensors{in.x.unfold(1, 4, 2) * 2, at::im2col(in.image, {3, 3}, {1, 1}, {0, 0}, {1, 1})};
       }},
      {"Reshape",
       [](const Inputs& in) {
         return Tensors{in.x.t().reshape({-1}), in.image.flatten(1), in.x.squeeze()};
       }},
      {"CatStack",
       [](const Inputs& in) {
         return Tensors{at::cat({in.x, in.y}, 1), at::stack({in.x, in.y, in.x})};
       }},
      {"Split",
       [](const Inputs& in) {
         const Tensors parts = (in.x * 2).split(3, 1), rows = (in.y + 1).unbind(), halves = in.w.chunk(2, 1);
         return Tensors{parts[0] * parts[1], parts[2], rows[0] + rows[3], halves[0] * halves[1]};
       }},
      {"SplitForeach",
       [](const Inputs& in) {
         Tensors halves = at::_foreach_mul((in.x * 1).chunk(2), 3);
         at::_foreach_add_(halves, (in.y * 1).chunk(2));
         return halves;
       }},
      {"RepeatRollFlip",
       [](const Inputs& in) {
         return Tensors{in.x.repeat({2, 1}), in.x.roll(1, 0), in.y.flip({1})};
       }},
      {"RepeatInterleave", [](const Inputs& in) { return Tensors{in.x.repeat_interleave(2, 0)}; }},
      {"Clone",
       [](const Inputs& in) {
         return Tensors{in.x.clone(), in.x.t().clone(), in.image.clone(at::MemoryFormat::ChannelsLast)};
       }},
      {"Contiguous",
       [](const Inputs& in) {
         return Tensors{in.x.t().contiguous(), in.x.contiguous(),
                        in.image.contiguous(at::MemoryFormat::ChannelsLast) * 2};
       }},
      {"Casts",
       [](const Inputs& in) {
         return Tensors{in.x.to(at::kDouble),     in.x.to(at::kBFloat16).to(at::kFloat),
                        in.x.to(at::kHalf),       in.mask.to(at::kFloat),
                        in.labels.to(at::kFloat), in.x.to(at::kFloat) * 2,
                        in.x.t().to(at::kDouble)};
       }},
      {"CastByOtherView", [](const Inputs& in) { return Tensors{in.buffer.view(at::kInt) + 1}; }},
      {"Detach", [](const Inputs& in) { return Tensors{in.x * in.x.detach()}; }},
      {"IndexSelect", [](const Inputs& in) { return Tensors{at::index_select(in.w, 0, in.labels)}; }},
      {"Gather",
       [](const Inputs& in) {
         return Tensors{at::gather(in.x, 0, in.index), in.w.take(in.labels)};
       }},
      {"IndexByTensor",
       [](const Inputs& in) {
         return Tensors{in.w.index({in.labels}), in.w.index({in.labels, in.labels})};
       }},
      {"Scatter",
       [](const Inputs& in) {
         return Tensors{at::scatter_add(in.x, 0, in.index, in.y), at::scatter(in.x, 1, in.labels.unsqueeze(1), 2.0)};
       }},
      {"IndexAdd",
       [](const Inputs& in) {
         return Tensors{at::index_add(in.w, 0, in.labels, in.x), in.w.index_fill(0, in.labels, 1)};
       }},
      {"IndexPut", [](const Inputs& in) { return Tensors{at::index_put(in.w, {in.labels}, in.x, true)}; }},
      {"InPlace",
       [](const Inputs& in) {
         in.buffer.add_(1).mul_(in.x.detach()).relu_();
         return Tensors{in.buffer * 2};
       }},
      {"InPlaceOnAViewOfABuffer",
       [](const Inputs& in) {
         in.buffer.narrow(1, 2, 3).mul_(2);
         in.buffer.t().select(0, 1).copy_(in.x.detach().select(1, 2));
         in.buffer[0].zero_();
         in.buffer.index_copy_(0, at::arange(2, 4, in.labels.options()), in.y.detach().narrow(0, 0, 2));
         return Tensors{in.buffer.sum(0)};
       }},
      {"InPlaceOnAResult",
       [](const Inputs& in) {
         at::Tensor y = in.x * in.y;
         y.narrow(1, 0, 4).mul_(2);
         y.select(0, 1).add_(in.v);
         y.masked_fill_(in.mask, 0.5);
         return Tensors{y, y.t()};
       }},
      {"InPlaceSetsAFreshTensor",
       [](const Inputs& in) {
         at::Tensor y = at::empty_like(in.x);
         y.copy_(in.x);
         at::Tensor z = at::zeros({8, 4}, in.x.options().requires_grad(false));
         z.t().copy_(in.y);
         return Tensors{y, z};
       }},
      {"Out",
       [](const Inputs& in) {
         at::Tensor y = at::empty({4, 8}, in.x.options().requires_grad(false)), grown = at::empty({0}, y.options());
         at::mm_out(y, in.x.detach(), in.w.detach());
         at::add_out(grown, y, in.y.detach());
         at::Tensor target = in.buffer;
         at::mul_out(target, y, grown);
         return Tensors{y, grown, in.buffer + 0};
       }},
      {"OutOfTwoResults",
       [](const Inputs& in) {
         at::Tensor values = at::empty({4, 3}, in.buffer.options()), order = at::empty({4, 3}, in.labels.options());
         at::topk_out(values, order, in.buffer, 3, 1);
         return Tensors{values * 2, order};
       }},
      {"OutIntoAView",
       [](const Inputs& in) {
         at::Tensor column = in.buffer.narrow(1, 0, 4);
         at::add_out(column, in.x.detach().narrow(1, 0, 4), in.y.detach().narrow(1, 4, 4));
         return Tensors{column + 0};
       }},
      {"Factories",
       [](const Inputs& in) {
         const auto options = in.x.options().requires_grad(false);
         return Tensors{at::zeros({3}, options) + in.v[0],     at::ones({4, 8}, options) * in.x,
                        at::full({8}, 0.5, options) * in.v,    at::arange(8, options) * in.v,
                        at::linspace(0, 1, 8, options) * in.v, at::eye(8, options).matmul(in.w),
                        at::zeros_like(in.x) + in.x,           at::ones_like(in.y) * in.y,
                        at::full_like(in.x, 2) * in.y};
       }},
      {"FactoriesWrittenTo",
       [](const Inputs& in) {
         at::Tensor sum = at::zeros({8}, in.x.options().requires_grad(false)), count = at::ones({}, sum.options());
         for (int row = 0; row < 4; ++row) {
           sum.add_(in.x.detach()[row]);
           count.add_(1);
         }
         const at::Tensor full = at::full({8}, 2, sum.options());
         full.mul_(sum);
         return Tensors{sum / count, full};
       }},
      {"ScalarTensors",
       [](const Inputs& in) {
         return Tensors{in.x * at::scalar_tensor(0.5, in.x.options().requires_grad(false)), in.x[0][0] * in.y};
       }},
      {"OneHot",
       [](const Inputs& in) {
         return Tensors{at::zeros({4, 8}, in.labels.options()).scatter_(1, in.labels.unsqueeze(1), 1)};
       }},
      {"EmptyTensors",
       [](const Inputs& in) {
         const at::Tensor none = in.x.narrow(0, 0, 0);
         return Tensors{none * 2, none.sum(), at::cat({none, in.x})};
       }},
      {"OneTensorTwice",
       [](const Inputs& in) {
         return Tensors{at::mul(in.x, in.x), at::cat({in.x, in.x})};
       }},
      {"ResultUsedAndFreed",
       [](const Inputs& in) {
         at::Tensor h = in.x;
         for (int layer = 0; layer < 6; ++layer) h = at::tanh(at::mm(h, in.w));  // freed bytes are made again
         return Tensors{h};
       }},
      {"ResizeOfNothing",
       [](const Inputs& in) {
         in.buffer.resize_({4, 8});
         return Tensors{in.buffer * 2};
       }},
      {"Meshgrid",
       [](const Inputs& in) {
         const Tensors grid = at::meshgrid({in.v, in.x[0]}, "ij");
         return Tensors{grid[0] * grid[1]};
       }},
      {"InferenceMode",
       [](const Inputs& in) {
         const c10::InferenceMode on;
         at::Tensor y = at::mm(in.x, in.w);
         y.add_(1).narrow(0, 0, 2).mul_(2);
         in.buffer.copy_(y);
         return Tensors{y.t().contiguous()};
       }},
      {"SecondDerivative",
       [](const Inputs& in) {
         const at::Tensor y = (in.x * in.v).tanh().sum();
         return Tensors{torch::autograd::grad({y}, {in.v}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0]};
       }},
      {"DoubleUseInBackward",
       [](const Inputs& in) {
         const at::Tensor h = in.x * in.v;
         return Tensors{(h * h).sum() + h.exp().sum()};
       }},
  };
  return cases;
}

}  // namespace pianola::testing
