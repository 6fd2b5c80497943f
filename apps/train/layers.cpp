#include <apps/train/layers.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/log.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

namespace pianola::train {

using torch::nn::Conv1d;
using torch::nn::Conv1dOptions;
using torch::nn::Dropout;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;
using torch::nn::LinearOptions;

AttentionImpl::AttentionImpl(const LayerSizes& sizes_)
    : sizes(sizes_),
      query_key_value(register_module("query_key_value", Linear(sizes.width, 3 * sizes.width))),
      out(register_module("out", Linear(sizes.width, sizes.width))),
      dropout(register_module("dropout", Dropout(sizes.dropout))) {}

// Products and a softmax give the same bits in each run; fused kernels need not.
at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const std::int64_t batch = x.size(0), length = x.size(1), head_width = sizes.width / sizes.heads;
  const auto split = query_key_value(x).view({batch, length, 3, sizes.heads, head_width}).permute({2, 0, 3, 1, 4});
  const auto part = [&](std::int64_t which) {
    return split.select(0, which).reshape({batch * sizes.heads, length, head_width});
  };
  at::Tensor scores = at::bmm(part(0), part(1).transpose(1, 2)) / std::sqrt(static_cast<double>(head_width));
  if (sizes.causal) {
    constexpr double kForbidden = -std::numeric_limits<double>::infinity();
    scores = scores + at::full({length, length}, kForbidden, x.options()).triu(1);
  }
  const at::Tensor mixed = at::bmm(dropout(at::softmax(scores, -1)), part(2));
  return out(
      mixed.view({batch, sizes.heads, length, head_width}).transpose(1, 2).reshape({batch, length, sizes.width}));
}

MlpImpl::MlpImpl(const LayerSizes& sizes)
    : up(register_module("up", Linear(sizes.width, 4 * sizes.width))),
      down(register_module("down", Linear(4 * sizes.width, sizes.width))),
      dropout(register_module("dropout", Dropout(sizes.dropout))) {}

at::Tensor MlpImpl::forward(const at::Tensor& x) { return dropout(down(at::gelu(up(x)))); }

RouterImpl::RouterImpl(const LayerSizes& sizes)
    : gate(register_module("gate", Linear(LinearOptions(sizes.width, sizes.experts).bias(false)))) {}

std::tuple<at::Tensor, at::Tensor> RouterImpl::forward(const at::Tensor& tokens) {
  return at::softmax(gate(tokens), -1).topk(2);
}

MoeImpl::MoeImpl(const LayerSizes& sizes_)
    : sizes(sizes_),
      router_module(register_module("router", Router(sizes))),
      router("moe_router", router_module),
      counted(eager([this](const std::vector<at::Tensor>& in) { return std::vector{dispatch(in[0], in[1], in[2])}; },
                    "the dispatch of experts")) {
  for (std::int64_t i = 0; i < sizes.experts; ++i) {
    LayerSizes of_expert = sizes;
    of_expert.dropout = 0;
    experts.push_back(register_module("expert" + std::to_string(i), Mlp(of_expert)));
  }
}

at::Tensor MoeImpl::forward(const at::Tensor& x) {
  const at::Tensor tokens = x.reshape({-1, sizes.width});
  const std::vector<at::Tensor> routed = router(std::vector<at::Tensor>{tokens});
  switch (sizes.dispatch) {
    case Dispatch::eager:
      return counted({tokens, routed.at(0), routed.at(1)}).front().view_as(x);
    case Dispatch::padded:
      return dispatch_padded(tokens, routed.at(0), routed.at(1)).view_as(x);
    case Dispatch::counted:
      break;
  }
  return dispatch(tokens, routed.at(0), routed.at(1)).view_as(x);
}

// The host asks how many tokens there are for each expert.
at::Tensor MoeImpl::dispatch(const at::Tensor& tokens, const at::Tensor& weights, const at::Tensor& chosen) {
  at::Tensor result = at::zeros_like(tokens);
  for (std::size_t i = 0; i < experts.size(); ++i) {
    const std::vector<at::Tensor> found = chosen.eq(static_cast<std::int64_t>(i)).nonzero_numpy();
    const at::Tensor weight = weights.index({found[0], found[1]}).unsqueeze(1);
    result = result.index_add(0, found[0], experts[i](tokens.index_select(0, found[0])) * weight);
  }
  return result;
}

// Each expert has places for a fixed number of tokens; what finds none goes to a place that nobody reads.
at::Tensor MoeImpl::dispatch_padded(const at::Tensor& tokens, const at::Tensor& weights, const at::Tensor& chosen) {
  const std::int64_t count = tokens.size(0);
  const auto places = static_cast<std::int64_t>(
      std::ceil(sizes.capacity * 2 * static_cast<double>(count) / static_cast<double>(sizes.experts)));
  const at::Tensor expert = chosen.flatten();
  const at::Tensor numbers = at::arange(sizes.experts, expert.options());
  const at::Tensor is_of = expert.unsqueeze(1).eq(numbers).to(at::kLong);
  const at::Tensor rank = ((is_of.cumsum(0) - 1) * is_of).sum(1);
  const at::Tensor nobody = at::full_like(expert, sizes.experts * places);
  const at::Tensor place = at::where(rank < places, expert * places + rank, nobody);
  const at::Tensor sent = tokens.unsqueeze(1).expand({count, 2, sizes.width}).reshape({2 * count, sizes.width});
  const at::Tensor buffer =
      at::zeros({sizes.experts * places + 1, sizes.width}, tokens.options()).index_copy(0, place, sent);
  std::vector<at::Tensor> made;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    made.push_back(experts[i](buffer.narrow(0, static_cast<std::int64_t>(i) * places, places)));
  }
  made.push_back(at::zeros({1, sizes.width}, tokens.options()));
  const at::Tensor back = at::cat(made).index_select(0, place).view({count, 2, sizes.width});
  return (back * weights.unsqueeze(2)).sum(1);
}

MambaImpl::MambaImpl(const LayerSizes& sizes)
    : inner(2 * sizes.width),
      in(register_module("in", Linear(LinearOptions(sizes.width, 2 * inner).bias(false)))),
      select(register_module("select", Linear(inner, 2 * kState + 1))),
      out(register_module("out", Linear(LinearOptions(inner, sizes.width).bias(false)))),
      convolution(register_module("convolution",
                                  Conv1d(Conv1dOptions(inner, inner, kWindow).groups(inner).padding(kWindow - 1)))),
      log_decay(register_parameter("log_decay", at::log(at::arange(1, kState + 1, at::kFloat)).repeat({inner, 1}))),
      skip(register_parameter("skip", at::ones({inner}))) {}

at::Tensor MambaImpl::forward(const at::Tensor& x) {
  const std::int64_t length = x.size(1);
  const std::vector<at::Tensor> both = in(x).chunk(2, -1);
  const at::Tensor u = at::silu(convolution(both[0].transpose(1, 2)).narrow(2, 0, length).transpose(1, 2));
  const std::vector<at::Tensor> selected = select(u).split_with_sizes({1, kState, kState}, -1);
  const at::Tensor step = at::softplus(selected[0]).unsqueeze(-1);
  const at::Tensor decay = at::exp(step * -at::exp(log_decay));              // [batch, length, inner, state]
  const at::Tensor fed = step * selected[1].unsqueeze(2) * u.unsqueeze(-1);  // the same
  at::Tensor state = at::zeros_like(fed.select(1, 0));
  std::vector<at::Tensor> outputs;
  for (std::int64_t t = 0; t < length; ++t) {
    state = decay.select(1, t) * state + fed.select(1, t);
    outputs.push_back((state * selected[2].select(1, t).unsqueeze(1)).sum(-1));
  }
  return out((at::stack(outputs, 1) + u * skip) * at::silu(both[1]));
}

BlockImpl::BlockImpl(const LayerSizes& sizes, Mixer mixer_, Inner inner_)
    : norm1(register_module("norm1", LayerNorm(LayerNormOptions({sizes.width})))),
      norm2(register_module("norm2", LayerNorm(LayerNormOptions({sizes.width})))) {
  mixer = mixer_ == Mixer::attention ? std::make_unique<Part>("attn", register_module("mixer", Attention(sizes)))
                                     : std::make_unique<Part>("mamba", register_module("mixer", Mamba(sizes)));
  if (inner_ == Inner::moe) {
    const Moe module = register_module("inner", Moe(sizes));
    moe = module.ptr();
    inner = std::make_unique<Part>("moe", module);
  } else {
    inner = std::make_unique<Part>("mlp", register_module("inner", Mlp(sizes)));
  }
}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const at::Tensor mixed = x + (*mixer)(norm1(x));
  return mixed + (*inner)(norm2(mixed));
}

std::vector<NamedPart> BlockImpl::parts(const std::string& name) {
  std::vector<NamedPart> all = {{.name = name + "." + mixer->scope(), .part = mixer.get()},
                                {.name = name + "." + inner->scope(), .part = inner.get()}};
  if (moe != nullptr) all.push_back({.name = name + ".moe.router", .part = &moe->router});
  return all;
}

}  // namespace pianola::train
