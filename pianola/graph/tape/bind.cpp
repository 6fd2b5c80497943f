#include <pianola/graph/tape/tape.hpp>

#include <pianola/graph/read_check.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

namespace pianola::graph {
namespace {

using c10::DispatchKey;

// Note [Variants that write their results]
// Most operators have a sibling that computes the same with the same kernel into a tensor it is given: aten::mm and
// aten::mm.out. Bound to it, a replay neither allocates nor copies. Only siblings with a CPU kernel of their own count
// (generated ones allocate and copy inside), and only after a trial: mse_loss.out, for one, resizes its result on the
// way. The trial runs both on the recorded inputs and compares the bytes. Only operators with one result: torch 2.11 calls
// a kernel that returns several references through make_boxed_from_unboxed_functor, which drops the arguments before it
// reads the references into them.

bool same_arguments(const c10::FunctionSchema& functional, const c10::FunctionSchema& out) {
  const auto& wanted = functional.arguments();
  const auto& given = out.arguments();
  if (given.size() != wanted.size() + functional.returns().size()) return false;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (given[i].name() != wanted[i].name() || *given[i].type() != *wanted[i].type()) return false;
  }
  return std::all_of(given.begin() + static_cast<std::ptrdiff_t>(wanted.size()), given.end(),
                     [](const c10::Argument& argument) { return argument.is_out(); });
}

std::optional<c10::OperatorHandle> find_out_variant(const c10::FunctionSchema& functional) {
  const std::string& overload = functional.overload_name();
  for (const std::string& candidate : {overload.empty() ? std::string("out") : overload + "_out", std::string("out")}) {
    const auto found = c10::Dispatcher::singleton().findSchema({functional.name(), candidate});
    if (found && found->hasKernelForDispatchKey(DispatchKey::CPU) && same_arguments(functional, found->schema())) {
      return found;
    }
  }
  return std::nullopt;
}

// Every result is one fresh tensor.
bool all_results_fresh(const TapeOp& op) {
  return op.fresh.size() == op.outputs.size() &&
         std::all_of(op.fresh.begin(), op.fresh.end(), [](const auto& result) { return result.second < 0; });
}

torch::jit::Stack run(const c10::OperatorHandle& op, torch::jit::Stack stack) {
  op.callBoxed(stack);
  return stack;
}

// A result to write into, laid out as the recorded one.
at::Tensor blank_like(const at::Tensor& recorded) {
  return at::empty_strided(recorded.sizes(), recorded.strides(), recorded.options());
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  return left.nbytes() == right.nbytes() &&
         (left.numel() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

// Counts instead of printing.
class WarningCounter final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override { ++count; }
  int count = 0;
};

// Of a conjugated view, and of a tensor without memory, the bytes say nothing.
bool has_plain_values(const TapeOp& op) {
  bool plain = true;
  for (const auto* values : {&op.inputs, &op.outputs}) {
    for (const c10::IValue& value : *values) {
      trace::for_each_tensor(value,
                             [&](const at::Tensor& tensor) { plain = plain && trace::bytes_are_values(tensor); });
    }
  }
  return plain;
}

// Not that of a tensor whose storage was freed in the step (resize_ to nothing), and which a replay gets anew.
bool has_memory(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return true;
  const std::size_t before = static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
  return tensor.numel() == 0 || tensor.storage().nbytes() >= before + trace::span_bytes_of(tensor);
}

bool has_memory(const TapeOp& op) {
  bool all = true;
  for (const auto* values : {&op.inputs, &op.outputs}) {
    for (const c10::IValue& value : *values) {
      trace::for_each_tensor(value, [&](const at::Tensor& tensor) { all = all && has_memory(tensor); });
    }
  }
  return all;
}

// Whether the variant writes the same bytes where it is told to, without a word.
bool passes_trial(const TapeOp& op, const c10::OperatorHandle& variant) {
  WarningCounter warnings;
  const c10::WarningUtils::WarningHandlerGuard count_warnings(&warnings);
  const trace::QuietScope quiet;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  SettingsOfOps settings;
  settings.enter(op.settings);
  try {
    const torch::jit::Stack expected = run(op.handle, op.inputs);
    torch::jit::Stack inputs = op.inputs;
    std::vector<const void*> addresses;
    for (const c10::IValue& output : op.outputs) {
      inputs.emplace_back(blank_like(output.toTensor()));
      addresses.push_back(inputs.back().toTensor().const_data_ptr());
    }
    const torch::jit::Stack written = run(variant, std::move(inputs));
    for (std::size_t i = 0; i < written.size(); ++i) {
      const at::Tensor& result = written[i].toTensor();
      if (result.const_data_ptr() != addresses[i] || result.strides() != op.outputs[i].toTensor().strides() ||
          !same_bytes(result, expected[i].toTensor())) {
        return false;
      }
    }
  } catch (const c10::Error&) {
    return false;  // recorded inputs may have been overwritten later in the step by values that do not fit
  }
  return warnings.count == 0;
}

bool bind_out_variant(TapeOp& op) {
  if (op.fresh.size() != 1 || op.info->seeded || op.info->writes_anything() || !all_results_fresh(op)) return false;
  if (!has_plain_values(op)) return false;
  const auto variant = find_out_variant(op.handle.schema());
  if (!variant || !passes_trial(op, *variant)) return false;
  op.handle = *variant;
  op.inputs.insert(op.inputs.end(), op.outputs.begin(), op.outputs.end());
  op.writes_results = true;
  return true;
}

// Copies and fills of a whole result, as the in-place operator on that result.
bool bind_copy_or_fill(TapeOp& op) {
  if (op.fresh.size() != 1 || op.outputs.size() != 1 || !op.outputs[0].isTensor()) return false;
  if (op.outputs[0].toTensor()._is_zerotensor()) return false;
  const std::string& name = op.handle.schema().name();
  const auto in_place = [&](const char* target, std::vector<c10::IValue> inputs) {
    op.handle = c10::Dispatcher::singleton().findSchemaOrThrow(target, "");
    op.inputs = std::move(inputs);
    op.writes_results = true;
    return true;
  };
  if (name == "aten::clone" || name == "aten::_to_copy") {
    op.is_copy = true;
    return in_place("aten::copy_", {op.outputs[0], op.inputs[0], false});
  }
  if (name == "aten::zeros" || name == "aten::zeros_like" || name == "aten::new_zeros") {
    op.is_copy = true;
    return in_place("aten::zero_", {op.outputs[0]});
  }
  return false;
}

bool runs_at_replay(const TapeOp& op) {
  if (op.info->is_empty) return false;
  // A view made of memory of its own is no view (an operator may copy where it cannot alias).
  return !op.info->is_view || !op.fresh.empty();
}

}  // namespace

// A check comes as soon as what it reads is there, and as a part of the call that is before it then.
void Tape::put_checks_in_place() {
  std::vector<TapeOp> checks;
  for (TapeOp& op : ops_) {
    const auto behind = place_of_check(op.info->name, op.inputs);
    if (!behind) continue;
    op.number = *behind;
    checks.push_back(std::move(op));
  }
  std::erase_if(ops_, [](const TapeOp& op) { return op.info->name == kReadCheck; });
  for (TapeOp& check : checks) {
    const auto next =
        std::find_if(ops_.begin(), ops_.end(), [&](const TapeOp& op) { return op.number > check.number; });
    ops_.insert(next, std::move(check));
  }
}

void Tape::bind() {
  std::vector<TapeOp> bound;
  bound.reserve(ops_.size());
  for (TapeOp& op : ops_) {
    if (!runs_at_replay(op)) continue;
    if (has_memory(op) && !bind_copy_or_fill(op)) bind_out_variant(op);
    bound.push_back(std::move(op));
  }
  ops_ = std::move(bound);
  put_checks_in_place();
  std::size_t calls = 0;
  for (const TapeOp& op : ops_) calls = std::max(calls, op.number + 1);
  index_of_call_.assign(calls, ops_.size());
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].info->name != kReadCheck) index_of_call_[ops_[i].number] = i;
  }
  find_results();
  stack_.reserve(32);
}

}  // namespace pianola::graph
