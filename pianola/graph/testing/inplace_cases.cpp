#include <pianola/graph/testing/ops_case.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace pianola::testing {
namespace {

using Change = std::function<void(at::Tensor&, const Inputs&)>;

// On the result of an operation, on a view of one, and twice over: each derivative needs a value that is gone by then.
OpsCase in_place(std::string name, Change change) {
  return {std::move(name), [change = std::move(change)](const Inputs& in) {
            at::Tensor plain = in.x * in.y, base = in.x + in.y, twice = in.x * 1;
            change(plain, in);
            at::Tensor view = base.narrow(0, 1, 2).t().narrow(0, 0, 8);
            change(view, in);
            change(twice, in);
            change(twice, in);
            return Tensors{plain, base, twice};
          }};
}

// A row of numbers that goes with the last dimension of x, and with that of its view.
at::Tensor partner(const at::Tensor& changed, const Inputs& in) {
  return in.v.narrow(0, 0, changed.size(-1)).sin() + 1.5;
}

Tensors gates(const Inputs& in, std::int64_t count) {
  const at::Tensor w = in.w.repeat({count, 1}) * 0.5, b = in.v.repeat({count}) * 0.1;
  return {w, w * 0.7, b, b + 0.1};
}

}  // namespace

// What an operation needs for its derivative and is about to overwrite; recurrent layers, whose cells work in place.
const std::vector<OpsCase>& inplace_cases() {
  static const std::vector<OpsCase> cases = {
      in_place("Mul_", [](at::Tensor& y, const Inputs& in) { y.mul_(partner(y, in)); }),
      in_place("Div_", [](at::Tensor& y, const Inputs& in) { y.div_(partner(y, in)); }),
      in_place("Pow_", [](at::Tensor& y, const Inputs&) { y.pow_(3); }),
      in_place("Clamp_", [](at::Tensor& y, const Inputs&) { y.clamp_(-0.5, 0.5); }),
      in_place("ClampMin_", [](at::Tensor& y, const Inputs& in) { y.clamp_min_(partner(y, in) - 1.5); }),
      in_place("Lerp_", [](at::Tensor& y, const Inputs& in) { y.lerp_(partner(y, in), partner(y, in) * 0.1); }),
      in_place("Sin_", [](at::Tensor& y, const Inputs&) { y.sin_(); }),
      in_place("Addcmul_", [](at::Tensor& y, const Inputs& in) { y.addcmul_(partner(y, in), partner(y, in), 0.5); }),
      in_place("Atan2_", [](at::Tensor& y, const Inputs& in) { y.atan2_(partner(y, in)); }),
      in_place("Silu_", [](at::Tensor& y, const Inputs&) { at::silu_(y); }),
      in_place("Hardswish_", [](at::Tensor& y, const Inputs&) { at::hardswish_(y); }),
      in_place("Mish_", [](at::Tensor& y, const Inputs&) { at::mish_(y); }),
      in_place("Hardtanh_", [](at::Tensor& y, const Inputs&) { at::hardtanh_(y, 0, 6); }),
      {"ForeachInPlace",
       [](const Inputs& in) {
         Tensors some = {in.x * 1, in.y * 1, in.w * 1}, factors = {in.y, in.x, in.w.t()};
         at::_foreach_mul_(some, factors);
         at::_foreach_sin_(some);
         at::_foreach_div_(some, Tensors{in.y.cos() + 2, in.x.cos() + 2, in.w.cos() + 2});
         return some;
       }},
      {"ForeachInPlaceOnViews",
       [](const Inputs& in) {
         // exp_ saves its result, which nothing may change afterwards, be it by another view of the base.
         const at::Tensor one = in.x * 1, two = in.w * 1;
         Tensors parts = {one.narrow(0, 0, 2), two.narrow(0, 2, 2)};
         at::_foreach_mul_(parts, in.y.split(2));
         at::_foreach_exp_(parts);
         return Tensors{one, two};
       }},
      {"Gru",
       [](const Inputs& in) {
         const auto [output, hidden] =
             at::gru(in.sequence, at::zeros({1, 2, 8}, in.x.options()), gates(in, 3), true, 1, 0.0, true, false, true);
         return Tensors{output, hidden};
       }},
      {"Lstm",
       [](const Inputs& in) {
         const at::Tensor zeros = at::zeros({1, 2, 8}, in.x.options());
         const auto [output, hidden, cell] =
             at::lstm(in.sequence, {zeros, zeros}, gates(in, 4), true, 1, 0.0, true, false, true);
         return Tensors{output, hidden, cell};
       }},
      {"RnnTanh",
       [](const Inputs& in) {
         const auto [output, hidden] = at::rnn_tanh(in.sequence, at::zeros({1, 2, 8}, in.x.options()), gates(in, 1),
                                                    true, 1, 0.0, true, false, true);
         return Tensors{output, hidden};
       }},
      {"GruCell",
       [](const Inputs& in) {
         const Tensors g = gates(in, 3);
         return Tensors{at::gru_cell(in.x, in.y, g[0], g[1], g[2], g[3])};
       }},
      {"SecondGradient",
       [](const Inputs& in) {
         const at::Tensor y = (in.x * 1).mul_(in.y).mul_(in.y).sin_();
         const Tensors first = torch::autograd::grad({y.sum()}, {in.x, in.y}, {}, /*retain_graph=*/true,
                                                     /*create_graph=*/true);
         return Tensors{y, first[0] * first[1]};
       }},
      {"ZeroTensors",
       [](const Inputs& in) {
         const Tensors of_abs = torch::autograd::grad({(in.x.abs() * in.y).sum()}, {in.x}, {}, true, true);
         const Tensors of_norm = torch::autograd::grad({in.y.norm(1)}, {in.y}, {}, true, true);
         return Tensors{in.x.sgn(),
                        in.x.sgn() * in.y,
                        of_abs[0],
                        of_norm[0],
                        at::l1_loss(in.x, in.y),
                        torch::autograd::grad({at::l1_loss(in.x, in.y)}, {in.x}, {}, true, true)[0]};
       }},
      {"ConjugatedAndNegated",
       [](const Inputs& in) {
         const at::Tensor z = at::complex(in.x * 1, in.y * 1), c = z.conj(), n = at::imag(c);
         at::Tensor written = at::complex(in.x * 2, in.y * 2), bits = written.conj();
         bits.mul_(z);
         at::imag(bits).mul_(in.y);
         return Tensors{c,
                        c.clone(),
                        c * z,
                        c.sum(),
                        n,
                        n.clone(),
                        n + 1,
                        n.exp(),
                        at::mm(c, z.t()),
                        c.t() * 2,
                        written,
                        c.resolve_conj() * 1,
                        n.resolve_neg() * 1,
                        c.contiguous().abs()};
       }},
  };
  return cases;
}

}  // namespace pianola::testing
