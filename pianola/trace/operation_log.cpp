#include <pianola/trace/operation_log.hpp>

#include <pianola/core/hazard_rule.hpp>
#include <pianola/trace/host_calls.hpp>
#include <pianola/trace/host_copy.hpp>
#include <pianola/trace/late_read.hpp>
#include <pianola/trace/optimizer_name.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/hash.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <type_traits>
#include <utility>

namespace pianola::trace {

// In place of an argument: the values that a copy from the host copied.
static constexpr std::uint16_t kCopied = 0xffff;

// How a message speaks of the two runs.
struct OperationLog::Words {
  std::string_view first;   // "in one call"
  std::string_view second;  // "in the next"
  std::string_view path;    // what is to be done where operations differ
  bool of_capture;          // the second one is a capture
  bool numbers_count;
  const OperationLog* before = nullptr;  // a run in which a number that counts was as in the first
};

namespace {

std::string in_words(bool value) { return value ? "true" : "false"; }
std::string in_words(std::int64_t value) { return fmt::format("{}", value); }
std::string in_words(double value) { return fmt::format("{}", value); }
std::string in_words(const std::complex<double>& value) { return fmt::format("{}+{}j", value.real(), value.imag()); }

// So that NaN equals itself, and -0.0 is another number than 0.0.
template <typename T>
bool same_bits(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  } else if constexpr (std::is_same_v<T, std::complex<double>>) {
    return same_bits(a.real(), b.real()) && same_bits(a.imag(), b.imag());
  } else {
    return a == b;
  }
}

template <typename Number>
bool same(const Number& a, const Number& b) {
  return a.index() == b.index() &&
         std::visit([&](const auto& value) { return same_bits(value, std::get<std::decay_t<decltype(value)>>(b)); }, a);
}

// What autograd itself does in the node of an accumulated gradient. Hooks of the user's run there too.
bool accumulates(const OpSpan& op) {
  if (op.backward == nullptr || !op.backward->accumulates()) return false;
  const std::string_view name = op.info->schema().name();
  if (op.info->is_view || name == "aten::clone" || name == "aten::copy_") return true;
  if (name != "aten::add" && name != "aten::add_") return false;
  return std::none_of(op.inputs.begin(), op.inputs.end(), [](const c10::IValue& value) {
    return (value.isInt() && value.toInt() != 1) || value.isDouble() || wrapped_number(value).has_value();
  });
}

// Computes nothing: another tensor for the same memory, or the same tensor without its history.
bool detaches(const OpInfo& op) { return op.name == "aten::detach" || op.name == "aten::detach_"; }

// A tensor whose shape only Python knows, or that has none, is not asked.
bool tells_its_shape(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return !impl->key_set().has(c10::DispatchKey::Python) && !tensor.is_nested() && !impl->has_symbolic_sizes_strides();
}

std::uint64_t shapes_of(c10::ArrayRef<c10::IValue> inputs) {
  std::uint64_t shapes = 0;
  const auto mix = [&](std::uint64_t value) { shapes = c10::hash_combine(shapes, value); };
  for (const c10::IValue& value : inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tells_its_shape(tensor)) return;
      mix(static_cast<std::uint64_t>(tensor.scalar_type()));
      for (const std::int64_t size : tensor.sizes()) mix(static_cast<std::uint64_t>(size));
      mix(~std::uint64_t{0});
    });
  }
  return shapes;
}

}  // namespace

namespace {

// A number that names a stream, as fsdp::record_grad_output_stream is given since torch 2.15: captures have streams of their own.
bool names_a_stream(const OpInfo& info, std::size_t argument) {
  return info.schema().arguments()[argument].name() == "stream_id";
}

}  // namespace

void OperationLog::on_op_begin(const OpSpan& op) {
  if (op.info->is_empty || accumulates(op) || detaches(*op.info) || LateRead::is_open()) return;
  const std::size_t before = numbers_.size();
  for (std::size_t argument = 0; argument < op.inputs.size(); ++argument) {
    if (!op.inputs[argument].isInt() || !names_a_stream(*op.info, argument)) add(op, op.inputs[argument]);
    arguments_.resize(numbers_.size(), static_cast<std::uint16_t>(argument));
  }
  if (const at::Tensor* const source = copied_from_host(*op.info, op.inputs)) {
    add_copied(*source);
  }
  if (op.backward == nullptr) {  // which has those of its forward pass, and a capture's are on the GPU
    for (const at::Tensor& index : indices_of_host(*op.info, op.inputs)) add_copied(index);
  }
  const HostCalls* const host = HostCalls::current();
  ops_.push_back({.info = op.info,
                  .number = op.number,
                  .numbers = static_cast<std::uint32_t>(numbers_.size() - before),
                  .is_backward = op.backward != nullptr,
                  .shapes = shapes_of(op.inputs),
                  .scope = index_of_scope(op.scopes),
                  .part = host == nullptr     ? HostPart::none
                          : host->is_active() ? HostPart::active
                                              : HostPart::passive});
  places_.push_back(CallSite::here());
}

void OperationLog::add_copied(const at::Tensor& source) {
  numbers_.emplace_back(hash_of_values(source));
  arguments_.push_back(kCopied);
}

std::uint32_t OperationLog::index_of_scope(std::span<const std::string> scopes) {
  const std::string_view optimizer = optimizer_in(scopes);
  if (optimizer.empty()) return 0;
  if (scopes_.back() != optimizer) scopes_.emplace_back(optimizer);
  return static_cast<std::uint32_t>(scopes_.size() - 1);
}

void OperationLog::add(const OpSpan& op, const c10::IValue& value) {
  if (value.isBool()) {
    numbers_.emplace_back(value.toBool());
  } else if (value.isInt()) {
    numbers_.emplace_back(value.toInt());
  } else if (value.isDouble()) {
    numbers_.emplace_back(value.toDouble());
  } else if (value.isComplexDouble()) {
    numbers_.emplace_back(std::complex<double>(value.toComplexDouble()));
  } else if (value.isList()) {
    for (const c10::IValue& entry : value.toListRef()) add(op, entry);
  } else if (const auto number = wrapped_number(value)) {
    numbers_.push_back(*number);
  } else if (host_numbers_ && value.isTensor() && value.toTensor().defined() &&
             op.memory->is_host_number(value.toTensor())) {
    numbers_.push_back(number_in(value.toTensor()));
  }
}

// That of no operation where it is not known.
std::size_t OperationLog::index_of(std::uint64_t number) const {
  const auto found = std::lower_bound(ops_.begin(), ops_.end(), number,
                                      [](const Op& op, std::uint64_t wanted) { return op.number < wanted; });
  return found == ops_.end() || found->number != number ? ops_.size() : static_cast<std::size_t>(found - ops_.begin());
}

CallSite OperationLog::site_of(std::uint64_t number) const {
  const std::size_t index = index_of(number);
  return index < places_.size() ? places_[index] : CallSite();
}

std::string_view OperationLog::name_of(std::uint64_t number) const {
  const std::size_t index = index_of(number);
  return index < ops_.size() ? std::string_view(ops_[index].info->name) : std::string_view();
}

bool OperationLog::has_called(std::string_view name) const {
  return std::ranges::any_of(ops_, [name](const Op& op) { return op.info->name == name; });
}

void OperationLog::forget_places() {
  places_.clear();
  places_.shrink_to_fit();
}

// "aten::mul.Tensor (step at train.py:12)".
std::string OperationLog::words_for(std::size_t index) const {
  if (index >= ops_.size()) return "missing";
  const Op& op = ops_[index];
  std::string text = op.info->name;
  const std::string place = index < places_.size() ? places_[index].describe() : "";
  if (op.is_backward) text += " in the backward pass";
  if (!place.empty()) text += fmt::format(" ({})", place);
  return text;
}

// ", by the optimizer AdamW as 'lr'"; where no optimizer gave it, nothing.
std::string OperationLog::optimizer_words(std::size_t index, std::size_t number) const {
  if (index >= places_.size()) return "";
  const Op& op = ops_[index];
  const std::string optimizer = optimizer_at(places_[index], scopes_[op.scope]);
  if (optimizer.empty()) return "";
  return fmt::format(", by the optimizer {} as '{}'", optimizer,
                     op.info->schema().arguments()[arguments_[number]].name());
}

// Steps of Python's optimizers are known where replays can run them again; C++ has to tell where they are.
std::string OperationLog::optimizer_fix(std::size_t index) const {
  const bool is_native = places_[index].script_frames().empty() && scopes_[ops_[index].scope].empty();
  return is_native ? "call it as pianola::step(optimizer) in a graphed function"
                   : std::string(hazard_rule("PG1001").fix);
}

Diagnosis OperationLog::other_number(const OperationLog& a, const OperationLog& b, std::size_t at, std::size_t number) {
  const auto text = [](const auto& value) { return in_words(value); };
  const std::string place = at < b.places_.size() ? b.places_[at].describe() : "";
  if (b.arguments_[number] == kCopied) {
    return {.what = fmt::format(
                "{} copies other values from the host in each call; a graph would copy the last ones for ever",
                b.ops_[at].info->name),
            .where = place.empty() ? "" : fmt::format("operation {}, {}", at + 1, place),
            .fix = "pass them as a tensor among the arguments, or make them on the device",
            .rule = "PG301"};
  }
  const std::string optimizer = b.optimizer_words(at, number);
  return {
      .what = fmt::format(
          "{} was given {} in one call and {} in the next{}; a graph would repeat the last one for ever",
          b.ops_[at].info->name, std::visit(text, a.numbers_[number]), std::visit(text, b.numbers_[number]), optimizer),
      .where = place.empty() ? "" : fmt::format("operation {}, {}", at + 1, place),
      .fix = optimizer.empty() ? "keep a number that changes in a tensor on the device"
                               : fmt::format("{}; or use one of pianola's optimizers", b.optimizer_fix(at)),
      .rule = "PG301"};
}

Diagnosis OperationLog::other_path(const OperationLog& a, const OperationLog& b, std::size_t at, const Words& words) {
  const bool same_operator = at < a.ops_.size() && at < b.ops_.size() && a.ops_[at].info == b.ops_[at].info;
  const std::string number = fmt::format("operation {}", at + 1);
  if (same_operator) {
    const std::string rule = "PG502";
    return {.what = fmt::format("{} was given tensors of one shape {} and of another {}", a.ops_[at].info->name,
                                words.first, words.second),
            .where = fmt::format("{}, {}", number, b.words_for(at)),
            .fix = std::string(hazard_rule(rule).fix),
            .rule = rule};
  }
  return {.what = fmt::format("the operations {} differ from those {}; a graph would repeat the last ones for ever",
                              words.first, words.second),
          .where = fmt::format("{} was {} {}, and {} {}", number, a.words_for(at), words.first, b.words_for(at),
                               words.second),
          .fix = std::string(words.path),
          .rule = "PG501"};
}

std::optional<Diagnosis> OperationLog::compare(const OperationLog& a, const OperationLog& b, const Words& words) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < std::max(a.ops_.size(), b.ops_.size()); ++i) {
    if (i == a.ops_.size() || i == b.ops_.size()) return other_path(a, b, i, words);
    const Op &was = a.ops_[i], &is = b.ops_[i];
    if (!was.info->computes_as(*is.info) || was.numbers != is.numbers) return other_path(a, b, i, words);
    for (const std::size_t end = number + is.numbers; number < end; ++number) {
      if (!words.numbers_count || same(a.numbers_[number], b.numbers_[number]) || may_differ(was, is, words)) continue;
      if (words.before != nullptr && was.part == HostPart::none &&
          !same(words.before->numbers_[number], a.numbers_[number])) {
        continue;
      }
      return other_number(a, b, i, number);
    }
    if (was.shapes != is.shapes) return other_path(a, b, i, words);
  }
  return std::nullopt;
}

// What a capture freezes, because its part is a passive one, must be as before.
bool OperationLog::may_differ(const Op& was, const Op& is, const Words& words) {
  if (was.part == HostPart::none || is.part == HostPart::none) return false;
  return !words.of_capture || is.part == HostPart::active;
}

std::vector<OperationLog::Receiver> OperationLog::receivers() const {
  std::vector<Receiver> result;
  for (const Op& op : ops_) {
    for (const std::size_t end = result.size() + op.numbers; result.size() < end;) {
      const std::size_t argument = arguments_[result.size()];
      const bool is_copied = argument == kCopied;
      const bool is_list =
          !is_copied && op.info->schema().arguments()[argument].type()->castRaw<c10::ListType>() != nullptr;
      result.push_back({.operation = op.number,
                        .info = op.info,
                        .argument = argument,
                        .is_in_list = is_list,
                        .is_copied = is_copied,
                        .is_in_part = op.part == HostPart::active});
    }
  }
  return result;
}

bool OperationLog::same_number(const Number& one, const Number& other) { return same(one, other); }

bool OperationLog::numbers_of_host_differ(const OperationLog& before, const OperationLog& now) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < std::min(before.ops_.size(), now.ops_.size()); ++i) {
    const Op &was = before.ops_[i], &is = now.ops_[i];
    if (!was.info->computes_as(*is.info) || was.numbers != is.numbers) return false;  // a first call that made state
    for (const std::size_t end = number + is.numbers; number < end; ++number) {
      if (is.part != HostPart::none && !same(before.numbers_[number], now.numbers_[number])) return true;
    }
  }
  return false;
}

std::optional<Diagnosis> OperationLog::difference(const OperationLog& before, const OperationLog& now,
                                                  bool numbers_count) {
  return compare(
      before, now,
      {.first = "in one call",
       .second = "in the next",
       .path = "make each call do the same: pass what decides as an argument, or decide on the device (torch.where)",
       .of_capture = false,
       .numbers_count = numbers_count});
}

std::optional<Diagnosis> OperationLog::changing_number(const OperationLog& first, const OperationLog& second,
                                                       const OperationLog& third) {
  if (difference(first, second, /*numbers_count=*/false) || difference(second, third, /*numbers_count=*/false)) {
    return std::nullopt;
  }
  std::size_t number = 0;
  for (std::size_t i = 0; i < second.ops_.size(); ++i) {
    for (const std::size_t end = number + second.ops_[i].numbers; number < end; ++number) {
      if (same(first.numbers_[number], second.numbers_[number])) continue;
      if (same(second.numbers_[number], third.numbers_[number])) continue;
      if (second.ops_[i].part == HostPart::none) return other_number(first, second, i, number);
    }
  }
  return std::nullopt;
}

static constexpr std::string_view kLastCall = "in the last call", kUnderCapture = "under capture";
static constexpr std::string_view kOneWay =
    "do not ask whether the step is captured, or accept what it does then with accept_capture_path";

std::optional<Diagnosis> OperationLog::difference_of_capture(const OperationLog& call, const OperationLog& capture,
                                                             bool numbers_count) {
  return compare(call, capture,
                 {.first = kLastCall,
                  .second = kUnderCapture,
                  .path = kOneWay,
                  .of_capture = true,
                  .numbers_count = numbers_count});
}

std::optional<Diagnosis> OperationLog::difference_of_capture(const OperationLog& before, const OperationLog& call,
                                                             const OperationLog& capture) {
  return compare(call, capture,
                 {.first = kLastCall,
                  .second = kUnderCapture,
                  .path = kOneWay,
                  .of_capture = true,
                  .numbers_count = true,
                  .before = &before});
}

}  // namespace pianola::trace
