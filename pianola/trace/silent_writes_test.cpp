// See Note [Writes that no schema tells] in op_info.cpp.
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <pianola/trace/testing/device_test.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <set>

namespace pianola::trace::silent_writes_test {
namespace {

using Values = std::vector<c10::IValue>;
using Ints = std::vector<std::int64_t>;
using Tensors = std::vector<at::Tensor>;

// NaN equals itself, and 0 differs from -0.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.cpu().contiguous(), right = b.cpu().contiguous();
  return left.nbytes() == right.nbytes() &&
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

/// Compares the arguments of every operation before and after it, and notes what changed although nothing tells it.
class Watch : public OpObserver {
 public:
  void on_op_begin(const OpSpan& op) override {
    const QuietScope quiet;
    seen.insert(op.info->name);
    const bool statistics = op.info->writes_statistics(op.inputs);
    std::set<const void*> written;
    for (const bool marked : {true, false}) {
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        const bool told = op.info->writes[i] || (statistics && op.info->running_statistic[i]);
        if (told != marked) continue;
        for_each_tensor(op.inputs[i], [&](const at::Tensor& tensor) {
          if (told)
            written.insert(storage_of(tensor));
          else if (!written.contains(storage_of(tensor)))
            before_[op.number].push_back({i, tensor, tensor.clone()});
        });
      }
    }
  }

  void on_op_end(const OpSpan& op) override {
    const QuietScope quiet;
    for (const Argument& argument : before_[op.number]) {
      if (same_bytes(argument.now, argument.before)) continue;
      untold.insert(op.info->name + " writes " + op.info->schema().arguments()[argument.index].name());
    }
    before_.erase(op.number);
  }

  std::set<std::string> seen, untold;

 private:
  struct Argument {
    std::size_t index;
    at::Tensor now, before;
  };
  std::map<std::uint64_t, std::vector<Argument>> before_;
};

// Arguments that are not given take the schema's defaults.
void call(const std::string& name, Values stack) {
  const std::size_t dot = name.find('.');
  const c10::OperatorName full{"aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)};
  const auto found = c10::Dispatcher::singleton().findSchema(full);
  ASSERT_TRUE(found) << "there is no " << name;
  const c10::OperatorHandle& op = *found;
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = stack.size(); i < arguments.size(); ++i) {
    ASSERT_TRUE(arguments[i].default_value()) << name << " needs " << arguments[i].name();
    stack.push_back(*arguments[i].default_value());
  }
  try {
    op.callBoxed(stack);
  } catch (const c10::Error& error) {
    ADD_FAILURE() << name << ": " << error.what_without_backtrace();
  }
}

class SilentWrites : public pianola::testing::DeviceTest {
 protected:
  std::set<std::string> watch(const std::function<void()>& step) {
    Watch observer;
    {
      const OpStream stream({&observer});
      step();
    }
    seen_.merge(observer.seen);
    return observer.untold;
  }

  void expect_none(const std::string& name, const Values& arguments) {
    const auto untold = watch([&] { call(name, arguments); });
    EXPECT_TRUE(untold.empty()) << name << ": " << *untold.begin();
  }

  std::set<std::string> seen_;
};
PIANOLA_ON_EVERY_DEVICE(SilentWrites);

TEST_P(SilentWrites, AreMadeByNoneOfTheOperatorsThatMoveAndReduceNumbers) {
  const at::Tensor m = randn({4, 4}), v = randn({4}, 2).abs() + 0.1, b = randn({2, 4, 4}, 3), i = randint(4, {4});
  const at::Tensor mask = m.gt(0), out = at::zeros({4, 4}, device());
  const c10::IValue none, any_axis = Ints{0};
  for (const char* unary :
       {"abs",         "neg",        "exp",        "log",   "sqrt",     "rsqrt",       "sin",
        "cos",         "tanh",       "sigmoid",    "relu",  "gelu",     "silu",        "erf",
        "reciprocal",  "sign",       "floor",      "isnan", "isfinite", "logical_not", "clone",
        "zeros_like",  "ones_like",  "contiguous", "sum",   "mean",     "prod",        "max",
        "min",         "std",        "all",        "any",   "square",   "softplus",    "hardswish",
        "mish",        "leaky_relu", "elu",        "t",     "trace",    "nonzero",     "flatten.using_ints",
        "log_sigmoid", "diag",       "triu",       "tril",  "sort",     "argmax",      "unique_consecutive",
        "bernoulli"}) {
    expect_none(unary, {std::string(unary) == "bernoulli" ? mask.to(at::kFloat) : m});
  }
  for (const char* binary :
       {"add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "mm", "matmul", "atan2",
        "fmod.Tensor", "eq.Tensor", "lt.Tensor", "add_.Tensor", "mul_.Tensor", "copy_"}) {
    expect_none(binary, {m.clone(), m});
  }
  const std::vector<std::pair<const char*, Values>> calls = {
      {"addmm", {v, m, m}},
      {"bmm", {b, b}},
      {"baddbmm", {b, b, b}},
      {"mv", {m, v}},
      {"dot", {v, v}},
      {"addmm_", {m.clone(), m, m}},
      {"outer", {v, v}},
      {"pow.Tensor_Scalar", {m, 2.0}},
      {"clamp", {m, -0.5, 0.5}},
      {"where.self", {mask, m, m}},
      {"masked_fill.Scalar", {m, mask, 0.0}},
      {"masked_scatter", {m, mask, m}},
      {"masked_select", {m, mask}},
      {"gather", {m, 0, i.view({1, 4})}},
      {"scatter.src", {m, 0, i.view({1, 4}), m}},
      {"index_select", {m, 0, i}},
      {"scatter_add", {m, 0, i.view({1, 4}), m}},
      {"index_add", {m, 0, i, m}},
      {"index_copy", {m, 0, at::arange(4, i.options()), m}},
      {"index_fill.int_Scalar", {m, 0, i, 1.0}},
      {"take", {m, i}},
      {"cat", {Tensors{m, m}, 0}},
      {"stack", {Tensors{m, m}, 0}},
      {"split.Tensor", {m, 2}},
      {"chunk", {m, 2}},
      {"unbind.int", {m}},
      {"roll", {m, Ints{1}, Ints{0}}},
      {"flip", {m, any_axis}},
      {"repeat", {m, Ints{2, 1}}},
      {"tile", {m, Ints{2}}},
      {"expand", {v, Ints{4, 4}}},
      {"permute", {m, Ints{1, 0}}},
      {"cumsum", {m, 0}},
      {"cumprod", {m, 0}},
      {"logsumexp", {m, any_axis}},
      {"softmax.int", {m, 1}},
      {"log_softmax.int", {m, 1}},
      {"var_mean", {m}},
      {"norm.Scalar", {m}},
      {"linalg_vector_norm", {m}},
      {"topk", {m, 2}},
      {"kthvalue", {v, 2}},
      {"median", {m}},
      {"linalg_solve", {m, m}},
      {"linalg_qr", {m}},
      {"linalg_inv", {m}},
      {"linalg_cholesky_ex", {m.mm(m.t()) + 4}},
      {"searchsorted.Tensor", {v.cumsum(0), v}},
      {"bincount", {i}},
      {"histc", {m}},
      {"one_hot", {i, 4}},
      {"lerp.Scalar", {m, m, 0.5}},
      {"addcmul", {m, m, m}},
      {"addcdiv", {m, m, m.abs() + 1}},
      {"mm.out", {m, m, out.clone()}},
      {"add.out", {m, m, 1.0, out.clone()}},
      {"_foreach_add.List", {Tensors{m, v}, Tensors{m, v}}},
      {"_foreach_mul_.Scalar", {Tensors{m.clone(), v.clone()}, 2.0}},
      {"_foreach_norm.Scalar", {Tensors{m, v}}},
      {"multinomial", {v, 2}},
      {"normal_", {m.clone()}},
      {"uniform_", {m.clone()}},
      {"dropout", {m, 0.5, true}},
      {"native_dropout", {m, 0.5, true}},
      {"_to_copy", {m, static_cast<std::int64_t>(at::kDouble)}},
      {"repeat_interleave.self_int", {m, 2}},
      {"constant_pad_nd", {m, Ints{1, 1}}},
      {"nan_to_num", {m}},
      {"cross", {b.slice(1, 0, 3), b.slice(1, 0, 3), 1}},
  };
  for (const auto& [name, arguments] : calls) expect_none(name, arguments);
  EXPECT_GE(seen_.size(), 110U) << "so many operators were watched";
}

TEST_P(SilentWrites, AreMadeByNoneOfTheOperatorsOfModulesButTheKnownLiars) {
  const at::Tensor image = randn({2, 4, 8, 8}), x = randn({2, 4}), kernel = randn({4, 4, 3, 3}, 2),
                   q = randn({2, 2, 8, 8}, 4);
  const at::Tensor scale = at::ones({4}, device()), shift = at::zeros({4}, device()), labels = randint(4, {2});
  const at::Tensor tokens = randint(8, {2, 3}), table = randn({8, 4}), zero = at::zeros({}, device());
  const c10::IValue none;
  const auto mean = [&] { return at::zeros({4}, device()); };
  const auto var = [&] { return at::ones({4}, device()); };
  const Ints one{1, 1}, two{2, 2};
  const std::vector<std::pair<const char*, Values>> calls = {
      {"batch_norm", {image, scale, shift, mean(), var(), true, 0.1, 1e-5, true}},
      {"batch_norm", {image, scale, shift, mean(), var(), true, 0.1, 1e-5, false}},
      {"batch_norm", {image, scale, shift, mean(), var(), false, 0.1, 1e-5, true}},
      {"native_batch_norm", {image, scale, shift, mean(), var(), true, 0.1, 1e-5}},
      {"_native_batch_norm_legit", {image, scale, shift, mean(), var(), true, 0.1, 1e-5}},
      {"_batch_norm_with_update", {image, scale, shift, mean(), var(), 0.1, 1e-5}},
      {"batch_norm_update_stats", {image, mean(), var(), 0.1}},
      {"instance_norm", {image, scale, shift, mean(), var(), true, 0.1, 1e-5, true}},
      {"layer_norm", {image, Ints{8}}},
      {"group_norm", {image, 2, scale, shift}},
      {"rms_norm", {x, Ints{4}}},
      {"linear", {x, randn({4, 4})}},
      {"bilinear", {x, x, randn({3, 4, 4}), none}},
      {"conv2d", {image, kernel}},
      {"conv1d", {image.select(3, 0), kernel.select(3, 0)}},
      {"conv_transpose2d.input", {image, kernel}},
      {"max_pool2d", {image, two}},
      {"avg_pool2d", {image, two}},
      {"adaptive_avg_pool2d", {image, one}},
      {"adaptive_max_pool2d", {image, two}},
      {"upsample_nearest2d", {image, Ints{16, 16}}},
      {"pixel_shuffle", {image, 2}},
      {"upsample_bilinear2d", {image, Ints{16, 16}, false}},
      {"reflection_pad2d", {image, Ints{1, 1, 1, 1}}},
      {"scaled_dot_product_attention", {q, q, q}},
      {"scaled_dot_product_attention", {q, q, q, none, 0.5}},
      {"embedding", {table, tokens}},
      {"embedding_bag", {table, tokens.flatten(), at::arange(0, 6, 2, tokens.options())}},
      {"embedding_renorm_", {table.clone(), tokens, 0.1, 2.0}},
      {"cross_entropy_loss", {x, labels}},
      {"nll_loss", {x, labels}},
      {"mse_loss", {x, x}},
      {"l1_loss", {x, x}},
      {"smooth_l1_loss", {x, x}},
      {"huber_loss", {x, x}},
      {"kl_div", {x, x}},
      {"binary_cross_entropy_with_logits", {x, x}},
      {"cosine_similarity", {x, x}},
      {"pairwise_distance", {x, x}},
      {"glu", {x}},
      {"rrelu", {x, 0.1, 0.3, true}},
      {"feature_dropout", {image, 0.5, true}},
      {"alpha_dropout", {x, 0.5, true}},
      {"multi_margin_loss", {x, labels}},
      {"prelu", {x, scale}},
      {"grid_sampler", {image, randn({2, 3, 3, 2}), 0, 0, false}},
      {"_fused_adamw_",
       {Tensors{x.clone()}, Tensors{x}, Tensors{at::zeros_like(x)}, Tensors{at::zeros_like(x)}, Tensors{},
        Tensors{zero + 1}, 1e-3, 0.9, 0.999, 0.01, 1e-8, false, false}},
      {"_fused_sgd_",
       {Tensors{x.clone()}, Tensors{x}, Tensors{at::zeros_like(x)}, 0.0, 0.9, 1e-3, 0.0, false, false, false}},
      {"_amp_foreach_non_finite_check_and_unscale_",
       {Tensors{x.clone()}, zero.clone().view({1}), (zero + 2).view({1})}},
      {"_amp_update_scale_", {zero + 2, at::zeros({}, zero.options().dtype(at::kInt)), zero.clone(), 2.0, 0.5, 100}},
  };
  for (const auto& [name, arguments] : calls) expect_none(name, arguments);
  EXPECT_GE(seen_.size(), 50U) << "so many operators were watched";
}

// What the tests above look for, and what they would say.
TEST_P(SilentWrites, OfAnOperatorThatLiesAreFound) {
  torch::Library library(torch::Library::DEF, "pianola_liar", std::nullopt, __FILE__, __LINE__);
  library.def("lie(Tensor a, Tensor b) -> Tensor", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                                                   [](const at::Tensor& a, const at::Tensor& b) {
                                                                     const at::DisableRecordFunctionGuard quiet;
                                                                     b.data().add_(1);
                                                                     return a.clone();
                                                                   }));
  c10::Stack stack{randn({2}), randn({2})};
  const auto untold =
      watch([&] { c10::Dispatcher::singleton().findSchemaOrThrow("pianola_liar::lie", "").callBoxed(stack); });
  EXPECT_THAT(untold, ::testing::ElementsAre("pianola_liar::lie writes b"));
}

}  // namespace
}  // namespace pianola::trace::silent_writes_test
