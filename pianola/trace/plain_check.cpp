#include <pianola/trace/plain_check.hpp>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <pianola/torch_abi/named_tensors.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace pianola::trace {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

constexpr DispatchKeySet kDispatchModes({DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                                         DispatchKey::PythonDispatcher, DispatchKey::PreDispatch});
constexpr DispatchKeySet kTransforms({DispatchKey::FuncTorchDynamicLayerFrontMode,
                                      DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::FuncTorchVmapMode,
                                      DispatchKey::FuncTorchGradWrapper, DispatchKey::FuncTorchBatched,
                                      DispatchKey::VmapMode, DispatchKey::Functionalize});
constexpr DispatchKeySet kJitTrace(DispatchKey::Tracer);
constexpr DispatchKeySet kModes = kDispatchModes | kTransforms | kJitTrace;

constexpr DispatchKeySet kSubclass({DispatchKey::Python, DispatchKey::PythonTLSSnapshot});
constexpr DispatchKeySet kWrapped({DispatchKey::FuncTorchGradWrapper, DispatchKey::FuncTorchBatched,
                                   DispatchKey::BatchedNestedTensor, DispatchKey::Batched, DispatchKey::Functionalize});
constexpr DispatchKeySet kNamed = torch_abi::kNamedTensors;
constexpr DispatchKeySet kNested(DispatchKey::NestedTensor);
constexpr DispatchKeySet kInStep = kSubclass | kWrapped | kNamed | kNested;

constexpr DispatchKeySet kSparse({DispatchKey::Sparse, DispatchKey::SparseCsr});
constexpr DispatchKeySet kOpaque({DispatchKey::MkldnnCPU, DispatchKey::Vulkan, DispatchKey::Metal});
constexpr DispatchKeySet kQuantized(DispatchKey::Quantized);
constexpr DispatchKeySet kZero(DispatchKey::ZeroTensor);
constexpr DispatchKeySet kMeta(c10::BackendComponent::MetaBit);
constexpr DispatchKeySet kOfInput = kInStep | kSparse | kOpaque | kQuantized | kZero | kMeta;

bool meet(DispatchKeySet one, DispatchKeySet other) noexcept { return (one.raw_repr() & other.raw_repr()) != 0; }

PythonLook& python_look() noexcept {
  static PythonLook look = {};
  return look;
}

Oddity by_keys(DispatchKeySet keys) noexcept {
  // The outermost wrapper first: a subclass may hold a nested tensor.
  if (meet(keys, kWrapped)) return Oddity::wrapped;
  if (meet(keys, kNested)) return Oddity::nested;
  if (meet(keys, kSubclass)) return Oddity::subclass;
  if (meet(keys, kNamed)) return Oddity::named;
  if (meet(keys, kSparse)) return Oddity::sparse;
  if (meet(keys, kOpaque)) return Oddity::opaque;
  if (meet(keys, kQuantized)) return Oddity::quantized;
  if (meet(keys, kMeta)) return Oddity::meta;
  if (meet(keys, kZero)) return Oddity::zero;
  return Oddity::none;
}

// A tensor that never had a tangent has no place for one; a view takes that of its base when it is asked.
bool has_tangent(const at::Tensor& tensor) noexcept {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
  if (meta == nullptr) return false;
  if (meta->is_view_) {
    const auto* view = static_cast<const torch::autograd::DifferentiableViewMeta*>(meta);
    if (meta->fw_grad_ == nullptr && !view->has_fw_view()) return false;
    const auto base_has_place = [&] {
      const at::Tensor& base = view->get_forward_view().base_;
      const auto* of_base = static_cast<const torch::autograd::AutogradMeta*>(
          base.defined() ? base.unsafeGetTensorImpl()->autograd_meta() : nullptr);
      return of_base != nullptr && of_base->fw_grad_ != nullptr;
    };
    if (meta->fw_grad_ == nullptr && !base_has_place()) return false;
  } else if (meta->fw_grad_ == nullptr) {
    return false;
  }
  return tensor._fw_grad(/*level=*/0).defined();
}

bool overrides_functions(const at::Tensor& tensor) noexcept {
  const auto look = python_look().overrides_functions;
  return look != nullptr && tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr && look(tensor);
}

std::string class_of(const at::Tensor& tensor) {
  const auto look = python_look().class_of;
  const std::string name = look == nullptr ? "" : look(tensor);
  return name.empty() ? "a subclass of Tensor" : "a " + name;
}

// " (FlopCounterMode)"
template <typename Mode>
std::string in_brackets(const std::shared_ptr<Mode>& mode) {
  const auto look = python_look().class_of_mode;
  if (look == nullptr || mode == nullptr) return "";
  return fmt::format(" ({})", look(mode->ptr(&mode->pyinterpreter())));
}

std::string innermost_dispatch_mode() {
  using c10::impl::TorchDispatchModeTLS;
  const std::int64_t modes = TorchDispatchModeTLS::stack_len();
  return modes == 0 ? "" : in_brackets(TorchDispatchModeTLS::get_stack_at(modes - 1));
}

std::string innermost_function_mode() {
  using at::impl::PythonTorchFunctionTLS;
  const std::int64_t modes = PythonTorchFunctionTLS::stack_len();
  return modes == 0 ? "" : in_brackets(PythonTorchFunctionTLS::get_stack_at(modes - 1));
}

}  // namespace

Oddity oddity_of_modes() noexcept {
  const c10::impl::LocalDispatchKeySet now = c10::impl::tls_local_dispatch_key_set();
  const DispatchKeySet active = now.included_ - now.excluded_;
  if (!meet(active, kModes)) [[likely]]
    return Oddity::none;
  if (meet(active, kTransforms)) return Oddity::transform;
  return meet(active, kDispatchModes) ? Oddity::dispatch_mode : Oddity::jit_trace;
}

Oddity oddity_of_input(const at::Tensor& tensor) noexcept {
  if (!tensor.defined()) return Oddity::none;
  const DispatchKeySet keys = tensor.unsafeGetTensorImpl()->key_set();
  if (meet(keys, kOfInput)) [[unlikely]]
    return by_keys(keys);
  if (has_tangent(tensor)) return Oddity::tangent;
  return overrides_functions(tensor) ? Oddity::function_subclass : Oddity::none;
}

Oddity oddity_in_step(const at::Tensor& tensor) noexcept {
  const DispatchKeySet keys = tensor.unsafeGetTensorImpl()->key_set();
  if (meet(keys, kInStep)) [[unlikely]]
    return by_keys(keys & kInStep);
  return has_tangent(tensor) ? Oddity::tangent : Oddity::none;
}

// Note [Transforms of torch.func]
// vmap, grad, vjp and jvp wrap tensors, and functorch takes each call of an operator apart, level by level: a batching rule, a
// kernel for autograd. Below the last level it calls operators on the tensors that were wrapped, outside of all levels, by the
// dispatcher, as Python would. So these calls are the operations: they are all that reads or writes memory, and who repeats them
// in order computes what the transform computes. Those above are for them what a composite is. A wrapper that outlives its level,
// as what vjp() saves for later, is taken off in the same way. Functionalize works otherwise: what it puts off and runs later is
// nobody's call.
bool is_of_a_transform() {
  constexpr DispatchKeySet kLevels(
      {DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode});
  const c10::impl::LocalDispatchKeySet now = c10::impl::tls_local_dispatch_key_set();
  if (!meet(now.included_ - now.excluded_, kLevels)) [[likely]]
    return false;
  const auto& levels = at::functorch::getDynamicLayerStack();
  return std::none_of(levels.begin(), levels.end(), [](const at::functorch::DynamicLayer& level) {
    return level.key() == at::functorch::TransformType::Functionalize;
  });
}

bool is_left_by_a_transform(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->key_set().has(DispatchKey::FuncTorchGradWrapper))
    return false;
  const at::functorch::TensorWrapper* const wrapper = at::functorch::maybeGetTensorWrapper(tensor);
  return wrapper != nullptr && !wrapper->is_alive();
}

bool hides_operations(Oddity oddity) noexcept {
  switch (oddity) {
    case Oddity::none:
    case Oddity::function_mode:
    case Oddity::function_subclass:
    case Oddity::compiled:
    case Oddity::communication:
    case Oddity::data_parallel:
    case Oddity::odd_leaf:
    case Oddity::collective:
    case Oddity::late_rank:
    case Oddity::sharded:
    case Oddity::resized:
      return false;
    default:
      return true;
  }
}

bool may_be_in_a_step(Oddity oddity) noexcept {
  return oddity == Oddity::communication || oddity == Oddity::data_parallel || oddity == Oddity::odd_leaf;
}

// Functional collectives, and DTensor's operator (torch 2.11, Functional.cpp): they call others of c10d for all they do.
bool is_made_of_collectives(std::string_view name) noexcept {
  constexpr std::array<std::string_view, 15> kNames = {"_wrap_tensor_autograd",
                                                       "all_gather_into_tensor",
                                                       "all_gather_into_tensor_coalesced",
                                                       "all_gather_into_tensor_out",
                                                       "all_reduce",
                                                       "all_reduce_",
                                                       "all_reduce_coalesced",
                                                       "all_reduce_coalesced_",
                                                       "all_to_all_single",
                                                       "broadcast",
                                                       "broadcast_",
                                                       "reduce_scatter_tensor",
                                                       "reduce_scatter_tensor_coalesced",
                                                       "reduce_scatter_tensor_out",
                                                       "wait_tensor"};
  for (const std::string_view space : {"_c10d_functional::", "_c10d_functional_autograd::"}) {
    if (!name.starts_with(space)) continue;
    const std::string_view rest = name.substr(space.size());
    return std::find(kNames.begin(), kNames.end(), rest) != kNames.end();
  }
  return name == "_dtensor::shard_dim_alltoall";
}

// Not among them: barriers, for which the host waits; messages from whoever comes first.
Oddity oddity_of_operator(std::string_view name) noexcept {
  constexpr std::array<std::string_view, 17> kOfSteps = {"c10d::allreduce_",
                                                         "c10d::allreduce_coalesced_",
                                                         "c10d::broadcast_",
                                                         "c10d::reduce_",
                                                         "c10d::allgather_",
                                                         "c10d::_allgather_base_",
                                                         "c10d::allgather_coalesced_",
                                                         "c10d::allgather_into_tensor_coalesced_",
                                                         "c10d::gather_",
                                                         "c10d::scatter_",
                                                         "c10d::alltoall_",
                                                         "c10d::alltoall_base_",
                                                         "c10d::reduce_scatter_",
                                                         "c10d::_reduce_scatter_base_",
                                                         "c10d::reduce_scatter_tensor_coalesced_",
                                                         "c10d::send",
                                                         "c10d::recv_"};
  if (std::find(kOfSteps.begin(), kOfSteps.end(), name) != kOfSteps.end()) return Oddity::communication;
  if (is_made_of_collectives(name)) return Oddity::none;  // what it calls is
  constexpr std::array<std::string_view, 5> kCollectives = {
      "c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "symm_mem::", "_dtensor::"};
  const bool is_collective =
      std::any_of(kCollectives.begin(), kCollectives.end(), [&](auto space) { return name.starts_with(space); });
  return is_collective ? Oddity::collective : Oddity::none;
}

// Dynamo looks for compiled code at each frame that it may run.
Oddity oddity_of_span(std::string_view name) noexcept {
  return name == "TorchDynamo Cache Lookup" || name.starts_with("Torch-Compiled Region") ? Oddity::compiled
                                                                                         : Oddity::none;
}

Oddity oddity_of_scope(std::string_view name) noexcept {
  if (name == "DistributedDataParallel.forward") return Oddity::data_parallel;
  if (name == "FullyShardedDataParallel.forward") return Oddity::sharded;
  return name == "CompiledFunctionBackward" ? Oddity::compiled : oddity_of_span(name);
}

FunctionModes function_modes() {
  if (at::impl::PythonTorchFunctionTLS::stack_len() == 0) [[likely]]
    return {};
  const auto look = python_look().function_modes;
  return look == nullptr ? FunctionModes{.users = true, .default_device = {}} : look();
}

bool compiled_code_is_seen() noexcept {
  const auto look = python_look().see_compiled_code;
  return look != nullptr && look();
}

bool is_compiling() noexcept {
  const auto look = python_look().is_compiling;
  return look != nullptr && look();
}

std::string modes_in_words(Oddity oddity) {
  switch (oddity) {
    case Oddity::dispatch_mode:
      return "under a TorchDispatchMode" + innermost_dispatch_mode();
    case Oddity::transform:
      return "inside a transform of torch.func (vmap, grad, jvp, functionalize)";
    case Oddity::jit_trace:
      return "inside torch.jit.trace";
    case Oddity::function_mode:
      return "under a TorchFunctionMode" + innermost_function_mode();
    default:
      return "";
  }
}

std::string in_words(Oddity oddity, const at::Tensor& tensor) {
  switch (oddity) {
    case Oddity::subclass:
      return class_of(tensor) + ", which runs Python for each operation";
    case Oddity::odd_leaf:
      return class_of(tensor) + " that requires grad, whose gradient the graph of a part cannot leave";
    case Oddity::function_subclass:
      return class_of(tensor) + ", whose __torch_function__ a replay does not call";
    case Oddity::wrapped:
      return "a tensor of a transform of torch.func (vmap, grad, jvp, functionalize)";
    case Oddity::tangent:
      return "a dual tensor of forward-mode AD, whose tangent a graph does not compute";
    case Oddity::named:
      return "a tensor with named dimensions, which a graph's results do not have";
    case Oddity::nested:
      return "a nested tensor, whose sizes a graph cannot follow";
    case Oddity::sparse:
      return "a sparse tensor, whose size a graph cannot follow";
    case Oddity::opaque:
      return "an opaque tensor (mkldnn), whose memory a graph cannot fill";
    case Oddity::quantized:
      return "a quantized tensor, whose scale a graph would freeze";
    case Oddity::meta:
      return "a meta tensor, which has no memory";
    case Oddity::zero:
      return "a tensor of zeros without memory";
    default:
      return "";
  }
}

std::string remedy_of(Oddity oddity) {
  switch (oddity) {
    case Oddity::none:
      break;
    case Oddity::dispatch_mode:
      return "leave the mode before captures and around replays; for selective checkpointing, use "
             "torch.utils.checkpoint without context_fn, or leave this part out of the capture";
    case Oddity::transform:
    case Oddity::wrapped:
      return "leave the transform out of the capture; gradients by torch.autograd.grad() and backward() can be "
             "captured";
    case Oddity::jit_trace:
      return "trace the original function, and capture the traced one";
    case Oddity::function_mode:
      return "leave the mode before";
    case Oddity::subclass:
      return "use the plain tensors that it holds (to_local() of a DTensor), or leave this part out of the capture";
    case Oddity::function_subclass:
      return "pass x.as_subclass(torch.Tensor)";
    case Oddity::tangent:
      return "leave forward-mode AD out of the capture; gradients by backward() can be captured";
    case Oddity::named:
      return "drop the names: x.rename(None)";
    case Oddity::nested:
      return "pad it (to_padded_tensor()), or leave this part out of the capture";
    case Oddity::sparse:
      return "pass its parts (indices() and values()), or a dense tensor";
    case Oddity::opaque:
      return "convert it: to_dense()";
    case Oddity::quantized:
      return "pass its values (int_repr()) and quantize inside, or leave this part out of the capture";
    case Oddity::meta:
      return "make it on a device";
    case Oddity::zero:
      return "pass clone() of it";
    case Oddity::compiled:
      return "compile it in another way (without mode='reduce-overhead', on the device of the step), or call it "
             "outside of the "
             "captured part";
    case Oddity::compiling:
      return "call it before as it is called here (the same shapes, modes and settings), so that its code is there";
    case Oddity::communication:
      return "graph the whole step (pianola.graphed, FullIteration), or leave it outside of the captured part: graph "
             "the module "
             "inside of DistributedDataParallel, or communicate after the replay";
    case Oddity::data_parallel:
      return "graph the whole step (pianola.graphed, FullIteration), or the module inside of it: "
             "DistributedDataParallel "
             "first, then graph its .module; or graph with grad=\"clone\" first, then wrap";
    case Oddity::odd_leaf:
      return "graph the whole step (pianola.graphed, FullIteration)";
    case Oddity::collective:
    case Oddity::late_rank:
      return "leave it outside of the captured part, or communicate after the replay";
    case Oddity::resized:
      return "resize it outside of the step, or let the step make tensors of its own";
    case Oddity::sharded:
      return "leave it outside of the captured part, or use fully_shard or DistributedDataParallel, which a whole step "
             "may hold";
  }
  return "";
}

std::string rule_of(Oddity oddity) {
  switch (oddity) {
    case Oddity::compiled:
    case Oddity::compiling:
      return "PG1005";
    case Oddity::communication:
    case Oddity::data_parallel:
    case Oddity::collective:
    case Oddity::late_rank:
    case Oddity::sharded:
      return "PG1106";
    default:
      return "PG1203";
  }
}

Diagnosis refuse_modes(Oddity oddity, std::string_view call, std::string_view consequence) {
  return {.what = fmt::format("{} was called {}, which a graph does not obey{}{}", call, modes_in_words(oddity),
                              consequence.empty() ? "" : "; ", consequence),
          .fix = remedy_of(oddity),
          .rule = rule_of(oddity)};
}

Diagnosis refuse_input(Oddity oddity, std::string_view name, const at::Tensor& tensor) {
  return {.what = fmt::format("{} is {}", name, in_words(oddity, tensor)),
          .fix = remedy_of(oddity),
          .rule = rule_of(oddity)};
}

void set_python_look(const PythonLook& look) noexcept { python_look() = look; }

}  // namespace pianola::trace
