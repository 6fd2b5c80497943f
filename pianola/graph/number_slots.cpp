#include <pianola/graph/number_slots.hpp>

#include <pianola/graph/moved_view.hpp>
#include <pianola/trace/alias.hpp>
#include <pianola/trace/number_span.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <complex>
#include <cstdint>
#include <utility>

namespace pianola::graph {
namespace {

bool is_number(const c10::IValue& value) {
  if (value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble()) return true;
  return value.isTensor() && value.toTensor().defined() && trace::is_number(value.toTensor());
}

// Whether the result has this argument's value, and not its shape.
bool is_of_values(const c10::Argument& argument) {
  const c10::Type* type = argument.type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType ||
         type->kind() == c10::TypeKind::TensorType;
}

c10::IValue as_value(const trace::OperationLog::Number& number) {
  return std::visit(
      [](auto value) -> c10::IValue {
        if constexpr (std::is_same_v<decltype(value), std::complex<double>>) {
          return c10::complex<double>(value.real(), value.imag());
        } else {
          return value;
        }
      },
      number);
}

double as_double(const c10::IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(value.toInt());
}

// A number of the kind that the operation had.
c10::IValue in_the_form_of(const c10::IValue& before, const c10::IValue& value) {
  if (before.isInt()) return value.isInt() ? value : c10::IValue(static_cast<std::int64_t>(value.toDouble()));
  if (before.isDouble()) return as_double(value);
  const at::Tensor& tensor = before.toTensor();
  const trace::QuietScope quiet;
  const c10::Scalar scalar = value.isDouble() ? c10::Scalar(value.toDouble()) : c10::Scalar(value.toInt());
  at::Tensor number = at::scalar_tensor(scalar, tensor.options().requires_grad(false));
  number.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return number;
}

// Autograd keeps something of it for a backward pass, and may have run another operation for that.
bool has_history(const trace::OpSpan& op) {
  bool requires_grad = false;
  for (const c10::IValue& input : op.inputs) {
    trace::for_each_tensor(input, [&](const at::Tensor& tensor) { requires_grad |= tensor.requires_grad(); });
  }
  return requires_grad && at::GradMode::is_enabled();
}

bool lies_alike(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() && one.scalar_type() == other.scalar_type();
}

}  // namespace

bool makes_shapes(const trace::OpInfo& op) {
  const std::string& name = op.handle.schema().name();
  return name == "aten::arange" || name == "aten::range" || name == "aten::linspace" || name == "aten::logspace";
}

bool same_number(const c10::IValue& one, const c10::IValue& other) {
  if (!one.isDouble() || !other.isDouble()) return one.tagKind() == other.tagKind() && one == other;
  return std::bit_cast<std::uint64_t>(one.toDouble()) == std::bit_cast<std::uint64_t>(other.toDouble());
}

// --- What a run was given ---

std::vector<int> NumberUses::sources_of(const trace::OpSpan& op) {
  std::vector<int> sources;
  if (const std::vector<int>* open = trace::NumberSpan::open()) sources = *open;
  if (op.backward != nullptr) {
    const auto forward = sequences_.find(op.backward->sequence);
    if (forward != sequences_.end()) sources.insert(sources.end(), forward->second.begin(), forward->second.end());
  } else if (!sources.empty() && op.sequence >= 0) {
    std::vector<int>& known = sequences_[op.sequence];
    known.insert(known.end(), sources.begin(), sources.end());
  }
  std::sort(sources.begin(), sources.end());
  sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
  return sources;
}

void NumberUses::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  is_at_one_ = false;
  std::vector<int> sources = sources_of(op);
  if (sources.empty() && views_.empty()) return;
  note_moving(op, !sources.empty());
  if (sources.empty()) return;
  is_at_one_ = true;
  Use use{.operation = operations_,
          .sources = std::move(sources),
          .is_direct = op.callers.empty() && op.backward == nullptr && !has_history(op),
          .inputs = {}};
  for (const c10::IValue& input : op.inputs) use.inputs.push_back(is_number(input) ? input : c10::IValue());
  uses_.emplace(op.number, std::move(use));
}

void NumberUses::note_moving(const trace::OpSpan& op, bool is_source) {
  std::vector<std::pair<std::size_t, std::size_t>> parents;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const bool is_tensor = op.inputs[i].isTensor();
    trace::for_each_tensor(op.inputs[i], [&](const at::Tensor& tensor) {
      const auto found = moving_.find(tensor.unsafeGetTensorImpl());
      if (found == moving_.end()) return note_strangers(tensor);
      View& view = views_[found->second];
      is_at_one_ = true;
      if (!is_tensor) {
        view.is_lost = true;
      } else if (op.info->is_view) {
        parents.emplace_back(i, found->second);
      } else {
        view.consumers.push_back({.operation = operations_, .argument = i});
        open_consumers_.emplace_back(op.number, found->second);
      }
    });
  }
  if (!op.info->is_view || (parents.empty() && !is_source)) return;
  View view{.operation = operations_, .info = op.info, .inputs = {}, .parents = std::move(parents)};
  for (const c10::IValue& input : op.inputs) view.inputs.push_back(trace::alias_values(input));
  open_views_.emplace_back(op.number, views_.size());
  views_.push_back(std::move(view));
}

// Another tensor at the same place, as autograd makes of what it saves, may be the result of a view or a tensor of its own.
void NumberUses::note_strangers(const at::Tensor& tensor) {
  for (View& view : views_) {
    if (view.result.defined() && trace::storage_of(tensor) == trace::storage_of(view.result) &&
        tensor.storage_offset() == view.result.storage_offset() && tensor.sizes() == view.result.sizes()) {
      view.is_lost = true;
    }
  }
}

void NumberUses::on_op_end(const trace::OpSpan& op) {
  // Of an operation that says nothing of it, such as _unsafe_view(), the result may lie where its argument does.
  for (; !open_consumers_.empty() && open_consumers_.back().first == op.number; open_consumers_.pop_back()) {
    View& view = views_[open_consumers_.back().second];
    for (const c10::IValue& output : op.outputs) {
      trace::for_each_tensor(output, [&](const at::Tensor& tensor) {
        const bool is_there = view.result.defined() && trace::storage_of(tensor) == trace::storage_of(view.result);
        if (is_there && !moving_.contains(tensor.unsafeGetTensorImpl())) view.is_lost = true;
      });
    }
  }
  if (open_views_.empty() || open_views_.back().first != op.number) return;
  View& view = views_[open_views_.back().second];
  const std::size_t index = open_views_.back().second;
  open_views_.pop_back();
  if (op.outputs.size() != 1 || !op.outputs[0].isTensor()) {
    view.is_lost = true;
    return;
  }
  const at::Tensor& result = op.outputs[0].toTensor();
  view.result = trace::alias_of(result);
  view.original.emplace(result.getIntrusivePtr());  // its address is not used again
  moving_[result.unsafeGetTensorImpl()] = index;
}

// --- What it shows ---

NumberEvidence NumberSlots::evidence(const NumberUses& uses, const trace::OperationLog& log,
                                     std::span<const NumberSample> samples, const GraphNumbers& graph,
                                     std::span<const at::Tensor> results) {
  NumberEvidence evidence;
  std::vector<const NumberSample*> alike;
  for (const NumberSample& sample : samples) {
    if (sample.given.size() == log.numbers().size()) alike.push_back(&sample);
  }
  for (const NumberSample* sample : alike) evidence.arguments.push_back(sample->arguments);
  // A view can be made again where all that comes of it can be given another tensor.
  std::vector<bool> can_move(uses.views_.size(), true);
  for (std::size_t i = uses.views_.size(); i-- > 0;) {
    const NumberUses::View& view = uses.views_[i];
    const bool is_result = std::any_of(results.begin(), results.end(), [&](const at::Tensor& result) {
      return view.result.defined() && trace::storage_of(result) == trace::storage_of(view.result);
    });
    const bool can_be_given = std::all_of(view.consumers.begin(), view.consumers.end(), [&](const auto& consumer) {
      return graph.has(consumer.operation, consumer.argument);
    });
    if (view.is_lost || is_result || !can_be_given) can_move[i] = false;
    if (can_move[i]) continue;
    for (const auto& [argument, parent] : view.parents) can_move[parent] = false;
  }
  std::unordered_map<std::size_t, std::size_t> view_of;  // by operation
  for (std::size_t i = 0; i < uses.views_.size(); ++i) view_of[uses.views_[i].operation] = i;

  const auto receivers = log.receivers();
  for (std::size_t i = 0; i < receivers.size(); ++i) {
    const auto& receiver = receivers[i];
    if (receiver.is_in_part) continue;
    const trace::OperationLog::Number& now = log.numbers()[i];
    const bool changes = std::any_of(alike.begin(), alike.end(), [&](const NumberSample* sample) {
      return !trace::OperationLog::same_number(sample->given[i], now);
    });
    const auto use = uses.uses_.find(receiver.operation);
    if (use == uses.uses_.end() && !changes) continue;
    NumberEvidence::Given given{.operation = 0,
                                .argument = receiver.argument,
                                .can_be_set = false,
                                .is_collective = receiver.info->collective,
                                .is_place = false,
                                .is_direct = false,
                                .sources = {},
                                .numbers = {}};
    if (use != uses.uses_.end()) {
      const auto view = view_of.find(use->second.operation);
      const trace::OpInfo& op = *receiver.info;
      given.operation = use->second.operation;
      given.sources = use->second.sources;
      given.is_place = view != view_of.end();
      given.is_direct = use->second.is_direct;
      given.can_be_set = !receiver.is_in_list && !receiver.is_copied &&
                         (view != view_of.end() ? can_move[view->second]
                                                : is_of_values(op.schema().arguments()[receiver.argument]) &&
                                                      !makes_shapes(op) && graph.has(given.operation, given.argument));
    }
    given.numbers.push_back(as_value(now));
    for (const NumberSample* sample : alike) given.numbers.push_back(as_value(sample->given[i]));
    evidence.given.push_back(std::move(given));
  }
  return evidence;
}

// --- Slots ---

NumberSlots::NumberSlots(const NumberUses& uses, std::span<const NumberSlot> slots) {
  std::unordered_map<std::size_t, std::vector<NumberSlot>> of_views;
  std::set<std::size_t> operations;
  for (const NumberUses::View& view : uses.views_) operations.insert(view.operation);
  for (const NumberSlot& slot : slots) {
    values_ = std::max(values_, slot.value + 1);
    if (operations.contains(slot.operation)) {
      of_views[slot.operation].push_back(slot);
      continue;
    }
    for (const auto& [number, use] : uses.uses_) {
      if (use.operation == slot.operation) numbers_.push_back({.slot = slot, .like = use.inputs.at(slot.argument)});
    }
  }
  std::unordered_map<std::size_t, std::size_t> taken;  // of all views, which are among these
  for (std::size_t i = 0; i < uses.views_.size(); ++i) {
    const NumberUses::View& call = uses.views_[i];
    View view{.call = call, .numbers = of_views[call.operation], .parents = {}};
    for (const auto& [argument, parent] : call.parents) {
      if (taken.contains(parent)) view.parents.emplace_back(argument, taken[parent]);
    }
    if (view.numbers.empty() && view.parents.empty()) continue;
    taken[i] = views_.size();
    view.call.original.reset();
    views_.push_back(std::move(view));
  }
}

// Computes the view's next result. False: not one that the graph can use.
bool NumberSlots::look_again(View& view, std::span<const c10::IValue> values) {
  view.has_moved = is_half_set_;
  for (const NumberSlot& slot : view.numbers) {
    c10::IValue& input = view.call.inputs[slot.argument];
    c10::IValue value = in_the_form_of(input, values[slot.value]);
    if (same_number(input, value)) continue;
    input = std::move(value);
    view.has_moved = true;
  }
  for (const auto& [argument, parent] : view.parents) {
    if (!views_[parent].has_moved) continue;
    view.call.inputs[argument] = views_[parent].next;
    view.has_moved = true;
  }
  if (!view.has_moved) return true;
  if (view.next.defined()) {
    if (const auto offset = offset_of_view(*view.call.info, view.call.inputs, view.call.result)) {
      view.next.unsafeGetTensorImpl()->set_storage_offset(
          *offset);  // the graph's operations and views of it have no other
      return true;
    }
  }
  torch::jit::Stack stack = view.call.inputs;
  try {
    view.call.info->handle.callBoxed(stack);
  } catch (const c10::Error&) {  // an index out of range: the function throws it
    return false;
  }
  if (!lies_alike(stack.front().toTensor(), view.call.result)) return false;
  view.next = stack.front().toTensor();
  return true;
}

bool NumberSlots::set(std::span<const c10::IValue> values, const GraphNumbers& graph) {
  if (values.size() < values_) return false;  // of a call that began before another thread's made the graph
  if (!views_.empty()) {
    const trace::QuietScope quiet;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (View& view : views_) {
      if (look_again(view, values)) continue;
      is_half_set_ = true;
      return false;
    }
    is_half_set_ = false;
    for (View& view : views_) {
      if (!view.has_moved) continue;
      for (const NumberUses::Consumer& consumer : view.call.consumers) {
        graph.set(consumer.operation, consumer.argument, view.next);
      }
    }
  }
  for (Number& number : numbers_) {
    c10::IValue value = values[number.slot.value];
    if (number.last.has_value() && same_number(*number.last, value)) continue;
    graph.set(number.slot.operation, number.slot.argument, in_the_form_of(number.like, value));
    number.last = std::move(value);
  }
  return true;
}

}  // namespace pianola::graph
