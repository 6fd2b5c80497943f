#include <pianola/graph/testing/ops_case.hpp>

#include <ATen/ATen.h>

namespace pianola::testing {

// Elementwise work, reductions, sorting, products, and lists.
const std::vector<OpsCase>& arithmetic_cases() {
  static const std::vector<OpsCase> cases = {
      {"Add", [](const Inputs& in) { return Tensors{in.x + in.y}; }},
      {"AddScaled", [](const Inputs& in) { return Tensors{at::add(in.x, in.y, 0.5)}; }},
      {"AddNumber",
       [](const Inputs& in) {
         return Tensors{in.x + 2, 3 - in.x, in.x * 0.25, 1 / (in.x.abs() + 1)};
       }},
      {"Broadcast", [](const Inputs& in) { return Tensors{in.x * in.v + in.v[0]}; }},
      {"Divide", [](const Inputs& in) { return Tensors{in.x / (in.y.abs() + 1)}; }},
      {"Remainder",
       [](const Inputs& in) {
         return Tensors{at::fmod(in.x, 0.3), at::remainder(in.y, 0.7)};
       }},
      {"Power",
       [](const Inputs& in) {
         return Tensors{at::pow(in.x, 2), at::pow(in.y.abs() + 0.1, in.x)};
       }},
      {"ExpLog",
       [](const Inputs& in) {
         return Tensors{in.x.exp(), (in.y.abs() + 1).log(), in.x.log1p().nan_to_num()};
       }},
      {"Trigonometry",
       [](const Inputs& in) {
         return Tensors{in.x.sin() * in.y.cos(), in.x.tanh(), in.y.atan()};
       }},
      {"Roots",
       [](const Inputs& in) {
         return Tensors{(in.x.abs() + 1).sqrt(), (in.y.abs() + 1).rsqrt()};
       }},
      {"Signs",
       [](const Inputs& in) {
         return Tensors{in.x.abs(), in.x.sign(), in.y.neg(), in.y.floor()};
       }},
      {"Clamp",
       [](const Inputs& in) {
         return Tensors{in.x.clamp(-0.5, 0.5), at::clamp(in.x, in.y - 1, in.y + 1)};
       }},
      {"Extremes",
       [](const Inputs& in) {
         return Tensors{at::maximum(in.x, in.y), at::minimum(in.x, in.y)};
       }},
      {"Where",
       [](const Inputs& in) {
         return Tensors{at::where(in.mask, in.x, in.y), at::where(in.x > 0, in.x, 0)};
       }},
      {"MaskedFill", [](const Inputs& in) { return Tensors{in.x.masked_fill(in.mask, -1e9)}; }},
      {"Compare",
       [](const Inputs& in) {
         return Tensors{in.x > in.y, in.x.eq(in.y), in.mask.logical_not() & (in.x < 1)};
       }},
      {"Lerp", [](const Inputs& in) { return Tensors{at::lerp(in.x, in.y, 0.3)}; }},
      {"Addcmul",
       [](const Inputs& in) {
         return Tensors{at::addcmul(in.x, in.y, in.y, 0.5), at::addcdiv(in.x, in.y, in.y.abs() + 1)};
       }},
      {"Sum",
       [](const Inputs& in) {
         return Tensors{in.x.sum(), in.x.sum(1), in.x.sum(0, true)};
       }},
      {"Mean",
       [](const Inputs& in) {
         return Tensors{in.x.mean(), in.x.mean(1, true)};
       }},
      {"Variance",
       [](const Inputs& in) {
         return Tensors{in.x.var(), in.x.std(1), std::get<0>(at::var_mean(in.y, 0))};
       }},
      {"Norm",
       [](const Inputs& in) {
         return Tensors{in.x.norm(), at::linalg_vector_norm(in.x, 2, {1})};
       }},
      {"Product", [](const Inputs& in) { return Tensors{(in.x.detach() + 2).prod(1)}; }},
      {"Maximum",
       [](const Inputs& in) {
         auto [value, at] = in.x.max(1);
         return Tensors{value, at, in.x.amax(0), in.x.detach().max()};
       }},
      {"Argmax",
       [](const Inputs& in) {
         return Tensors{in.x.argmax(1), in.y.argmin()};
       }},
      {"Logsumexp", [](const Inputs& in) { return Tensors{in.x.logsumexp(1)}; }},
      {"Cumulative",
       [](const Inputs& in) {
         return Tensors{in.x.cumsum(1), in.y.detach().cumprod(0)};
       }},
      {"AnyAll",
       [](const Inputs& in) {
         return Tensors{in.mask.any(), in.mask.all(1)};
       }},
      {"Sort",
       [](const Inputs& in) {
         auto [value, order] = in.x.sort(1);
         return Tensors{value, order};
       }},
      {"Topk",
       [](const Inputs& in) {
         auto [value, order] = in.x.topk(3, 1);
         return Tensors{value, order};
       }},
      {"Argsort", [](const Inputs& in) { return Tensors{in.x.gather(1, in.y.argsort(std::int64_t{1}))}; }},
      {"Mm", [](const Inputs& in) { return Tensors{at::mm(in.x, in.w)}; }},
      {"MatmulTransposed",
       [](const Inputs& in) {
         return Tensors{at::matmul(in.x, in.w.t()), at::matmul(in.w, in.v)};
       }},
      {"Addmm", [](const Inputs& in) { return Tensors{at::addmm(in.v, in.x, in.w, 0.5, 2)}; }},
      {"Bmm", [](const Inputs& in) { return Tensors{at::bmm(in.sequence, in.sequence.transpose(1, 2))}; }},
      {"Baddbmm",
       [](const Inputs& in) {
         return Tensors{at::baddbmm(in.y, in.sequence, in.w.expand({2, 8, 8}))};
       }},
      {"Einsum",
       [](const Inputs& in) {
         return Tensors{at::einsum("bij,jk,k->bi", {in.sequence, in.w, in.v})};
       }},
      {"Outer",
       [](const Inputs& in) {
         return Tensors{at::outer(in.v, in.v), at::dot(in.v, in.v), at::mv(in.w, in.v)};
       }},
      {"Complex",
       [](const Inputs& in) {
         const at::Tensor z = at::complex(in.x, in.y);
         return Tensors{at::real(z * z), z.abs(), z.angle()};
       }},
      {"Fourier", [](const Inputs& in) { return Tensors{at::fft_irfft(at::fft_rfft(in.x) * 0.5)}; }},
      {"Integers",
       [](const Inputs& in) {
         return Tensors{in.labels * 2 + 1, in.labels.bitwise_and(3), in.labels.div(2, "floor")};
       }},
      {"ForeachArithmetic",
       [](const Inputs& in) {
         const Tensors sum = at::_foreach_add({in.x, in.w}, {in.y, in.w}, 2);
         return at::_foreach_mul(sum, 0.5);
       }},
      {"ForeachNormAndClip",
       [](const Inputs& in) {
         const Tensors all = {in.x.detach(), in.w.detach(), in.v.detach()};
         const at::Tensor total = at::linalg_vector_norm(at::stack(at::_foreach_norm(all)));
         return at::_foreach_mul(all, at::clamp_max(1 / (total + 1e-6), 1));
       }},
      {"ForeachInPlace",
       [](const Inputs& in) {
         const Tensors parts = in.buffer.chunk(2);
         at::_foreach_add_(parts, 1);
         at::_foreach_lerp_(parts, Tensors{in.x.detach().narrow(0, 0, 2), in.y.detach().narrow(0, 2, 2)}, 0.3);
         at::_foreach_copy_({in.statistic}, {in.v.detach().narrow(0, 0, 4).exp()});
         return Tensors{in.buffer * 2};
       }},
      {"FoundInf",
       [](const Inputs& in) {
         at::Tensor found = at::zeros({1}, in.buffer.options());
         const at::Tensor scale = at::full({1}, 0.5, in.buffer.options());
         const Tensors parts = {in.buffer};
         at::_amp_foreach_non_finite_check_and_unscale_(parts, found, scale);
         return Tensors{found, in.buffer + 0};
       }},
  };
  return cases;
}

}  // namespace pianola::testing
