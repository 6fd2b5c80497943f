#include <pianola/trace/nondeterministic.hpp>

#include <pianola/trace/op_info.hpp>

#include <ATen/Context.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <variant>

namespace pianola::trace {
namespace {

// What a call must be like.
enum class If : std::uint8_t {
  never,
  always,
  floating,  ///< A tensor among its arguments holds floating or complex numbers: integers add up the same in any order.
  accumulating,  ///< Its argument `accumulate` is true.
  replacing,     ///< It is false: where an index occurs twice, either value may win.
  taking_max,    ///< Its argument `mode` says so.
};

struct Operator {
  std::string_view name;  ///< With an overload where the others do not count.
  If on_gpu = If::always;
  If on_cpu = If::never;
};

// Note [Nondeterministic operators]
// From the list in the documentation of torch.use_deterministic_algorithms (torch 2.11), translated to the operators
// that a trace holds, and from the operators beside them that refuse to run in that mode. Backward of attention is there
// because torch says that it "defaults to a non-deterministic algorithm" in each of its implementations; that of
// convolution because cuDNN's fastest algorithms for it may be, which torch.backends.cudnn.deterministic exists for.
// Backward of an embedding is not there: it was written to add in a fixed order.
constexpr std::array kOperators = {
    Operator{"aten::_adaptive_avg_pool2d_backward"},
    Operator{"aten::_adaptive_avg_pool3d_backward"},
    Operator{"aten::_ctc_loss_backward"},
    Operator{"aten::_cudnn_attention_backward"},
    Operator{"aten::_efficient_attention_backward"},
    Operator{"aten::_embedding_bag_dense_backward", If::taking_max},
    Operator{"aten::_flash_attention_backward"},
    Operator{"aten::_index_put_impl_", If::replacing, If::accumulating},
    Operator{"aten::_scaled_dot_product_cudnn_attention_backward"},
    Operator{"aten::_scaled_dot_product_efficient_attention_backward"},
    Operator{"aten::_scaled_dot_product_flash_attention_backward"},
    Operator{"aten::_unsafe_index_put", If::replacing, If::accumulating},
    Operator{"aten::_upsample_bicubic2d_aa_backward"},
    Operator{"aten::_upsample_bilinear2d_aa_backward"},
    Operator{"aten::adaptive_max_pool2d_backward"},
    Operator{"aten::adaptive_max_pool3d_backward"},
    Operator{"aten::avg_pool3d_backward"},
    Operator{"aten::bincount", If::floating},
    Operator{"aten::convolution_backward"},
    Operator{"aten::cumsum", If::floating},
    Operator{"aten::cumsum_", If::floating},
    Operator{"aten::fractional_max_pool2d_backward"},
    Operator{"aten::fractional_max_pool3d_backward"},
    Operator{"aten::grid_sampler_2d_backward"},
    Operator{"aten::grid_sampler_3d_backward"},
    Operator{"aten::histc", If::floating},
    Operator{"aten::index_add"},
    Operator{"aten::index_add_"},
    Operator{"aten::index_copy"},
    Operator{"aten::index_copy_"},
    Operator{"aten::index_put", If::replacing, If::accumulating},
    Operator{"aten::index_put_", If::replacing, If::accumulating},
    Operator{"aten::index_reduce"},
    Operator{"aten::index_reduce_"},
    Operator{"aten::kthvalue"},
    Operator{"aten::max_pool3d_with_indices_backward"},
    Operator{"aten::max_unpool2d"},
    Operator{"aten::max_unpool3d"},
    Operator{"aten::median.dim"},
    Operator{"aten::median.dim_values"},
    Operator{"aten::nanmedian.dim"},
    Operator{"aten::nanmedian.dim_values"},
    Operator{"aten::nll_loss2d_forward"},
    Operator{"aten::put", If::always, If::accumulating},
    Operator{"aten::put_", If::always, If::accumulating},
    Operator{"aten::reflection_pad1d_backward"},
    Operator{"aten::reflection_pad2d_backward"},
    Operator{"aten::reflection_pad3d_backward"},
    Operator{"aten::replication_pad1d_backward"},
    Operator{"aten::replication_pad2d_backward"},
    Operator{"aten::replication_pad3d_backward"},
    Operator{"aten::scatter.reduce"},
    Operator{"aten::scatter.src"},
    Operator{"aten::scatter_.reduce"},
    Operator{"aten::scatter_.src"},
    Operator{"aten::scatter_add"},
    Operator{"aten::scatter_add_"},
    Operator{"aten::scatter_reduce"},
    Operator{"aten::scatter_reduce_"},
    Operator{"aten::upsample_bicubic2d_backward"},
    Operator{"aten::upsample_bilinear2d_backward"},
    Operator{"aten::upsample_linear1d_backward"},
    Operator{"aten::upsample_trilinear3d_backward"},
};

const Operator* find_operator(std::string_view name) {
  const auto named = [&](std::string_view wanted) {
    const auto found =
        std::find_if(kOperators.begin(), kOperators.end(), [&](const Operator& entry) { return entry.name == wanted; });
    return found == kOperators.end() ? nullptr : &*found;
  };
  const Operator* exact = named(name);
  return exact != nullptr ? exact : named(name.substr(0, name.find('.')));
}

bool runs_on_cpu(const OpTrace& trace, const OpRecord& op) {
  const auto inputs = trace.inputs(op);
  return std::all_of(inputs.begin(), inputs.end(), [](const TensorRecord& input) { return input.device.is_cpu(); });
}

std::int64_t number_named(const OpTrace& trace, const OpRecord& op, std::string_view argument) {
  const auto& arguments = op.info->schema().arguments();
  for (const ScalarRecord& scalar : trace.scalars(op)) {
    if (arguments[static_cast<std::size_t>(scalar.argument)].name() != argument) continue;
    return std::visit([](auto value) { return static_cast<std::int64_t>(value); }, scalar.value);
  }
  return 0;
}

bool holds(If condition, const OpTrace& trace, const OpRecord& op) {
  constexpr std::int64_t kModeMax = 2;  // of aten::embedding_bag
  const auto inputs = trace.inputs(op);
  switch (condition) {
    case If::never:
      return false;
    case If::always:
      return true;
    case If::floating:
      return std::any_of(inputs.begin(), inputs.end(), [](const TensorRecord& input) {
        return c10::isFloatingType(input.dtype) || c10::isComplexType(input.dtype);
      });
    case If::accumulating:
      return number_named(trace, op, "accumulate") != 0;
    case If::replacing:
      return number_named(trace, op, "accumulate") == 0;
    case If::taking_max:
      return number_named(trace, op, "mode") == kModeMax;
  }
  return true;
}

// The mode in which torch refuses what has no deterministic algorithm, and takes that one of the others.
bool torch_sees_to_it() {
  const at::Context& torch = at::globalContext();
  return torch.deterministicAlgorithms() && !torch.deterministicAlgorithmsWarnOnly();
}

}  // namespace

std::vector<std::string> nondeterministic_operators(const OpTrace& trace) {
  if (torch_sees_to_it()) return {};
  std::vector<std::string> names;
  std::unordered_map<const trace::OpInfo*, const Operator*> entries;  // nullptr: none, or told already
  for (const OpRecord& op : trace.ops()) {
    const auto [found, is_new] = entries.try_emplace(op.info);
    if (is_new) found->second = find_operator(trace.name(op));
    const Operator*& entry = found->second;
    if (entry == nullptr || !holds(runs_on_cpu(trace, op) ? entry->on_cpu : entry->on_gpu, trace, op)) continue;
    names.push_back(trace.name(op));
    entry = nullptr;
  }
  return names;
}

std::vector<std::string_view> nondeterministic_names() {
  std::vector<std::string_view> names;
  std::transform(kOperators.begin(), kOperators.end(), std::back_inserter(names),
                 [](const Operator& entry) { return entry.name; });
  return names;
}

}  // namespace pianola::trace
