#include <pianola/trace/op_info.hpp>

#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace pianola::trace {
namespace {

using c10::DispatchKey;

// Note [Writes that no schema tells]
// These operators write their arguments running_mean and running_var with no mark in the schema and no version bump
// (torch 2.11, native_functions.yaml): some where their flag `training` is set, those without such a flag always.
// write_set_test.cpp hashes the inputs of many operators before and after to find more of them.
constexpr std::array<std::string_view, 6> kSilentStatistics = {
    "aten::native_batch_norm",       "aten::cudnn_batch_norm",        "aten::miopen_batch_norm",
    "aten::batch_norm_update_stats", "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts",
};

// The same of single arguments: cuDNN advances the dropout state of recurrent layers, and backward may overwrite what
// forward reserved for it (derivatives.yaml clones it where it is to be used twice).
struct SilentWrite {
  std::string_view operator_name;
  std::string_view argument;
};
constexpr std::array<SilentWrite, 5> kSilentWrites = {{
    {"aten::_cudnn_rnn", "dropout_state"},
    {"aten::_cudnn_rnn_backward", "dropout_state"},
    {"aten::_cudnn_rnn_backward", "reserve"},
    {"aten::batch_norm_backward", "reserve"},
    {"aten::cudnn_batch_norm_backward", "reserveSpace"},
}};

bool is_tensor_like(const c10::TypePtr& type) {
  if (type->isSubtypeOf(*c10::TensorType::get())) return true;
  if (const auto list = type->cast<c10::ListType>()) return is_tensor_like(list->getElementType());
  if (const auto optional = type->cast<c10::OptionalType>()) return is_tensor_like(optional->getElementType());
  return false;
}

// No collective marks in its schema what it writes.
bool is_received(std::string_view operator_name, const c10::Argument& argument) {
  if (!operator_name.starts_with("c10d::") || operator_name == "c10d::send" || operator_name.ends_with("barrier") ||
      operator_name.ends_with("barrier_")) {
    return false;
  }
  return is_tensor_like(argument.type()) && !argument.name().starts_with("input") &&
         argument.name() != "sparse_indices";
}

// Gloo copies what reduce_scatter gave, and hands messages over, where its Work is waited for.
bool is_done_by_wait(std::string_view operator_name) {
  return operator_name.starts_with("c10d::") && (operator_name.find("reduce_scatter") != std::string_view::npos ||
                                                 operator_name == "c10d::send" || operator_name == "c10d::recv_");
}

bool writes_silently(std::string_view operator_name, std::string_view argument) {
  return std::any_of(kSilentWrites.begin(), kSilentWrites.end(), [&](const SilentWrite& write) {
    return write.operator_name == operator_name && write.argument == argument;
  });
}

// Tagged data_dependent_output or dynamic_output_shape, and always read a value on the host. The tags alone are hints:
// index.Tensor carries one with integer indices too.
constexpr std::array<std::string_view, 4> kHostValue = {"aten::_local_scalar_dense", "aten::equal", "aten::allclose",
                                                        "aten::_nested_tensor_from_mask_left_aligned"};
constexpr std::array<std::string_view, 8> kDynamicShape = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique",
    "aten::_unique2",
    "aten::bincount",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::unique_dim_consecutive",
};
constexpr std::array<std::string_view, 2> kMaskRead = {"aten::index", "aten::_unsafe_index"};
constexpr std::array<std::string_view, 4> kMaskWritten = {"aten::index_put", "aten::index_put_",
                                                          "aten::_index_put_impl_", "aten::_unsafe_index_put"};
constexpr std::array<std::string_view, 1> kRepeats = {"aten::repeat_interleave"};
constexpr std::array<std::string_view, 7> kAllocatesOnly = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::empty_permuted",
    "aten::_efficientzerotensor",
};

// Composites by name that call no other operators, or not for all they do: they read and write the memory of their
// arguments themselves (torch 2.11, SobolEngineOps.cpp, QuantizedLinear.cpp).
constexpr std::array<std::string_view, 11> kWorkThemselves = {
    "aten::_sobol_engine_draw",
    "aten::_sobol_engine_ff_",
    "aten::_sobol_engine_scramble_",
    "aten::_sobol_engine_initialize_state_",
    "aten::_saturate_weight_to_fp16",
    "aten::fbgemm_linear_int8_weight",
    "aten::fbgemm_linear_int8_weight_fp32_activation",
    "aten::fbgemm_linear_fp16_weight",
    "aten::fbgemm_linear_fp16_weight_fp32_activation",
    "aten::fbgemm_linear_quantize_weight",
    "aten::fbgemm_pack_quantized_matrix",
};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A view returns only aliases of arguments that it does not write.
bool is_pure_view(const c10::FunctionSchema& schema) {
  const auto reads = [](const c10::Argument& argument) {
    return argument.alias_info() == nullptr || !argument.alias_info()->isWrite();
  };
  const auto aliases = [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  };
  return !schema.returns().empty() && std::all_of(schema.arguments().begin(), schema.arguments().end(), reads) &&
         std::all_of(schema.returns().begin(), schema.returns().end(), aliases);
}

HostRead classify_host_read(const std::string& name) {
  if (contains(kHostValue, name)) return HostRead::always;
  if (contains(kDynamicShape, name)) return HostRead::dynamic_shape;
  if (contains(kMaskRead, name)) return HostRead::bool_index;
  if (contains(kMaskWritten, name)) return HostRead::bool_index_put;
  if (contains(kRepeats, name)) return HostRead::repeats_tensor;
  return HostRead::never;
}

bool runs_on(DispatchKey key, c10::ArrayRef<c10::IValue> inputs) {
  bool found = false;
  for (const c10::IValue& value : inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) { found = found || tensor.key_set().has(key); });
  }
  return found;
}

// Autocast of one device takes no notice of a call on tensors of another.
bool autocasts(DispatchKey key, c10::ArrayRef<c10::IValue> inputs) {
  if (c10::impl::tls_is_dispatch_key_excluded(key)) return false;
  return runs_on(key, inputs);
}

// A composite for those who want a gradient; for others it runs a kernel on the CPU itself (torch 2.11, MaxPooling.cpp).
bool pools_without_gradient(c10::ArrayRef<c10::IValue> inputs) {
  if (inputs.empty() || !inputs[0].isTensor() || !inputs[0].toTensor().defined()) return false;
  const at::Tensor& self = inputs[0].toTensor();
  if (!self.device().is_cpu() || self.is_quantized() || self.key_set().has(DispatchKey::Python)) return false;
  return !(self.requires_grad() && at::GradMode::is_enabled()) && !self._fw_grad(/*level=*/0).defined();
}

bool has_autograd_kernel(const c10::OperatorHandle& op) {
  constexpr std::array<DispatchKey, 4> kKeys = {DispatchKey::Autograd, DispatchKey::AutogradCPU,
                                                DispatchKey::AutogradCUDA, DispatchKey::AutogradOther};
  return std::any_of(kKeys.begin(), kKeys.end(), [&](DispatchKey key) {
    return op.hasKernelForDispatchKey(key) && !op.isKernelFallthroughKernel(key);
  });
}

bool is_named(const OpInfo& info, std::string_view base, std::string_view overload) {
  std::string_view name = info.name;
  if (!name.starts_with(base)) return false;
  name.remove_prefix(base.size());
  return overload.empty() ? name.empty() : name.starts_with('.') && name.substr(1) == overload;
}

// One for all threads. What an earlier operator at the same address left stays, since traces point to it.
const OpInfo* shared_info(const c10::OperatorHandle& handle) {
  static std::mutex mutex;
  static std::unordered_map<const char*, std::vector<std::unique_ptr<const OpInfo>>> known;
  const std::string& base = handle.schema().name();
  const std::lock_guard lock(mutex);
  auto& candidates = known[base.c_str()];
  for (const auto& candidate : candidates) {
    if (is_named(*candidate, base, handle.schema().overload_name())) return candidate.get();
  }
  return candidates.emplace_back(std::make_unique<const OpInfo>(handle)).get();
}

bool is_generator(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return (optional != nullptr ? *optional->getElementType() : type).kind() == c10::TypeKind::GeneratorType;
}

}  // namespace

// Note [Which spans are operations]
// A call of a composite operator (one with a CompositeImplicitAutograd kernel) only calls other operators, and some of
// what those return is hidden inside it: layer_norm returns its output, backward reads the mean as well. So recording
// descends through composites; the first other operator is the operation. A few composites work on memory themselves
// (kWorkThemselves, and max_pool1d of whom nobody wants a gradient): they are operations. Where an operator has a kernel of its own beside
// the composite one, for one device, it is an operation on that device and a composite elsewhere (_fused_rms_norm).
// Operators that autocast wraps call their casts and then themselves, with autocast excluded: that inner call is the
// operation, its casts are operations as well.
//
// Note [Calls of a kernel for autograd]
// An operator that is differentiated runs two kernels: the one for autograd, and inside it, with autograd excluded, the
// one that computes. What the first calls for itself is seen by others than the operator: mul_ clones what it is about to
// overwrite, and backward reads the clone; a hook on saved tensors computes what it likes; the setup_context of an operator
// in Python may save whatever it made. A replay runs the second kernel alone. So these calls are operations of their own,
// inside the operation around them (OpSpan::around); what the second kernel calls is not. Autograd being excluded tells the
// two apart: VariableType's kernels, torch.library's and the fallback for operators without a derivative all exclude it
// around the kernel that computes.
OpInfo::OpInfo(c10::OperatorHandle op) : handle(std::move(op)) {
  const c10::FunctionSchema& declared = handle.schema();
  const std::string& base = declared.name();
  name = declared.overload_name().empty() ? base : base + "." + declared.overload_name();

  const bool statistics = contains(kSilentStatistics, base);
  bool takes_generator = false;
  for (std::size_t i = 0; i < declared.arguments().size(); ++i) {
    const c10::Argument& argument = declared.arguments()[i];
    writes.push_back((argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
                     writes_silently(base, argument.name()) || is_received(base, argument));
    running_statistic.push_back(statistics && argument.name().starts_with("running_"));
    if (statistics && argument.name() == "training") training_argument = static_cast<int>(i);
    takes_generator = takes_generator || is_generator(*argument.type());
  }
  is_view = is_pure_view(declared);
  is_empty = contains(kAllocatesOnly, base);
  adopts_memory = base == "aten::set_";
  seeded = takes_generator || handle.hasTag(at::Tag::nondeterministic_seeded);
  host_read = classify_host_read(base);
  collective = oddity_of_operator(base) != Oddity::none;
  done_by_wait = is_done_by_wait(base);

  composite_ =
      is_made_of_collectives(base) ||
      (handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) && !contains(kWorkThemselves, base));
  cpu_kernel_ = handle.hasKernelForDispatchKey(DispatchKey::CPU);
  cuda_kernel_ = handle.hasKernelForDispatchKey(DispatchKey::CUDA);
  autograd_kernel_ = has_autograd_kernel(handle);
  pools_itself_ = base == "aten::max_pool1d";
  autocast_cpu_ = handle.hasKernelForDispatchKey(DispatchKey::AutocastCPU);
  autocast_cuda_ = handle.hasKernelForDispatchKey(DispatchKey::AutocastCUDA);
}

bool OpInfo::computes_as(const OpInfo& other) const {
  const auto out_of_place = [](const OpInfo& op) {
    std::string_view plain = op.schema().name();
    if (plain.ends_with('_')) plain.remove_suffix(1);
    return plain;
  };
  return this == &other || out_of_place(*this) == out_of_place(other);
}

bool OpInfo::writes_anything() const {
  return std::find(writes.begin(), writes.end(), true) != writes.end() ||
         std::find(running_statistic.begin(), running_statistic.end(), true) != running_statistic.end();
}

bool OpInfo::writes_statistics(c10::ArrayRef<c10::IValue> inputs) const {
  if (training_argument < 0) return true;
  const auto flag = static_cast<std::size_t>(training_argument);
  return flag < inputs.size() && inputs[flag].isBool() && inputs[flag].toBool();
}

bool OpInfo::transparent_now(c10::ArrayRef<c10::IValue> inputs) const {
  const bool has_its_own_kernel = (cpu_kernel_ && runs_on(DispatchKey::CPU, inputs)) ||
                                  (cuda_kernel_ && runs_on(DispatchKey::CUDA, inputs)) ||
                                  (pools_itself_ && pools_without_gradient(inputs));
  if (composite_ && !has_its_own_kernel) return true;
  return (autocast_cpu_ && autocasts(DispatchKey::AutocastCPU, inputs)) ||
         (autocast_cuda_ && autocasts(DispatchKey::AutocastCUDA, inputs));
}

bool OpInfo::differentiates_now(c10::ArrayRef<c10::IValue> inputs) const {
  if (!autograd_kernel_ || c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutogradFunctionality)) return false;
  bool differentiable = false;
  for (const c10::IValue& value : inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      differentiable = differentiable || tensor.key_set().has_any(c10::autograd_dispatch_keyset);
    });
  }
  return differentiable;
}

// The key is the address of the name inside the registered schema. An operator that was registered after another was
// removed (Python's torch.library can do so) may get its address; then the name differs.
const OpInfo* find_op(const at::RecordFunction& span) {
  thread_local ska::flat_hash_map<const char*, const OpInfo*> seen;
  const auto found = seen.find(span.name());
  if (found != seen.end() && is_named(*found->second, span.name(), span.overload_name())) return found->second;

  const std::optional<c10::OperatorName> name = span.operator_name();
  if (!name) return nullptr;
  const std::optional<c10::OperatorHandle> handle = c10::Dispatcher::singleton().findOp(*name);
  if (!handle || !handle->hasSchema()) return nullptr;
  return seen[span.name()] = shared_info(*handle);
}

const OpInfo& info_of(const c10::OperatorHandle& handle) {
  thread_local ska::flat_hash_map<const char*, const OpInfo*> seen;
  const c10::FunctionSchema& schema = handle.schema();
  const OpInfo*& known = seen[schema.name().c_str()];
  if (known == nullptr || !is_named(*known, schema.name(), schema.overload_name())) known = shared_info(handle);
  return *known;
}

std::vector<std::string_view> names_in_tables() {
  std::vector<std::string_view> names;
  const auto add = [&](const auto& table) { names.insert(names.end(), table.begin(), table.end()); };
  add(kSilentStatistics), add(kHostValue), add(kDynamicShape), add(kMaskRead), add(kMaskWritten), add(kRepeats);
  add(kAllocatesOnly), add(kWorkThemselves);
  for (const SilentWrite& write : kSilentWrites) names.push_back(write.operator_name);
  return names;
}

}  // namespace pianola::trace
