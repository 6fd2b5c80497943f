#include <pianola/trace/op_info.hpp>

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

namespace pianola::trace {
namespace {

using c10::DispatchKey;

// Note [Writes that no schema tells]
// These operators write their running statistics while training, with no mark in the schema and no version bump
// (torch 2.11, native_functions.yaml). The arguments are found by name; write_set_test.cpp hashes inputs before and
// after every operator it can call, to find more of them.
constexpr std::array<std::string_view, 7> kSilentStatistics = {
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm", "aten::batch_norm",
    "aten::instance_norm",     "aten::_batch_norm_impl_index", "aten::batch_norm_update_stats",
};

// Tagged data_dependent_output or dynamic_output_shape, and always read a value on the host. The tags alone are hints:
// index.Tensor carries one with integer indices too.
constexpr std::array<std::string_view, 3> kHostValue = {"aten::_local_scalar_dense", "aten::equal",
                                                        "aten::is_nonzero"};
constexpr std::array<std::string_view, 12> kDynamicShape = {
    "aten::nonzero",        "aten::nonzero_numpy",       "aten::masked_select",   "aten::_unique",
    "aten::_unique2",       "aten::unique_dim",          "aten::unique_consecutive", "aten::unique_dim_consecutive",
    "aten::argwhere",       "aten::bincount",            "aten::_ctc_loss_max",   "aten::_assert_async_value",
};
constexpr std::array<std::string_view, 6> kMaskIndexed = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
    "aten::_unsafe_index_put",
};
constexpr std::array<std::string_view, 7> kAllocatesOnly = {
    "aten::empty",     "aten::empty_like",    "aten::empty_strided", "aten::new_empty",
    "aten::new_empty_strided", "aten::empty_permuted", "aten::_efficientzerotensor",
};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_tensor_like(const c10::TypePtr& type) {
  if (type->isSubtypeOf(*c10::TensorType::get())) return true;
  if (const auto list = type->cast<c10::ListType>()) return is_tensor_like(list->getElementType());
  if (const auto optional = type->cast<c10::OptionalType>()) return is_tensor_like(optional->getElementType());
  return false;
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
  if (contains(kMaskIndexed, name)) return HostRead::bool_index;
  if (name == "aten::repeat_interleave") return HostRead::repeats_tensor;
  return HostRead::never;
}

}  // namespace

// Note [Which spans are operations]
// A call of a composite operator (one with a CompositeImplicitAutograd kernel) only calls other operators, and some of
// what those return is hidden inside it: layer_norm returns its output, backward reads the mean as well. So recording
// descends through composites; the first other operator is the operation. An operator that has a kernel of its own for
// the backend too (registered beside the composite one) is an operation. Operators that autocast wraps call their casts
// and then themselves, with autocast excluded: that inner call is the operation, its casts are operations as well.
OpInfo::OpInfo(c10::OperatorHandle op) : handle(std::move(op)) {
  const c10::FunctionSchema& declared = handle.schema();
  const std::string& base = declared.name();
  name = declared.overload_name().empty() ? base : base + "." + declared.overload_name();

  const bool statistics = contains(kSilentStatistics, base);
  bool takes_generator = false;
  for (std::size_t i = 0; i < declared.arguments().size(); ++i) {
    const c10::Argument& argument = declared.arguments()[i];
    writes.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    running_statistic.push_back(statistics && argument.name().starts_with("running_"));
    if (statistics && (argument.name() == "training" || argument.name() == "use_input_stats")) {
      training_argument = static_cast<int>(i);
    }
    takes_generator = takes_generator || argument.name() == "generator";
  }
  is_view = is_pure_view(declared);
  is_empty = contains(kAllocatesOnly, base);
  seeded = takes_generator || handle.hasTag(at::Tag::nondeterministic_seeded);
  host_read = classify_host_read(base);

  composite_ = handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
               !handle.hasKernelForDispatchKey(DispatchKey::CPU) && !handle.hasKernelForDispatchKey(DispatchKey::CUDA);
  autocast_cpu_ = handle.hasKernelForDispatchKey(DispatchKey::AutocastCPU);
  autocast_cuda_ = handle.hasKernelForDispatchKey(DispatchKey::AutocastCUDA);
}

bool OpInfo::writes_anything() const {
  return training_argument >= 0 || std::find(writes.begin(), writes.end(), true) != writes.end();
}

bool OpInfo::transparent_now() const {
  if (composite_) return true;
  return (autocast_cpu_ && !c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutocastCPU)) ||
         (autocast_cuda_ && !c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutocastCUDA));
}

const OpInfo* find_op(const at::RecordFunction& span) {
  // The key is the address of the name inside the registered schema: unique per operator while it is registered. A span
  // that is no operator holds its name elsewhere and never hits; it is not entered into the table.
  static std::shared_mutex mutex;
  static std::unordered_map<const char*, std::unique_ptr<const OpInfo>> known;
  {
    const std::shared_lock lock(mutex);
    if (const auto found = known.find(span.name()); found != known.end()) return found->second.get();
  }
  const std::optional<c10::OperatorName> name = span.operator_name();
  if (!name) return nullptr;
  const std::optional<c10::OperatorHandle> handle = c10::Dispatcher::singleton().findOp(*name);
  if (!handle || !handle->hasSchema()) return nullptr;
  const std::lock_guard lock(mutex);
  auto& entry = known[span.name()];
  if (entry == nullptr) entry = std::make_unique<const OpInfo>(*handle);
  return entry.get();
}

}  // namespace pianola::trace
