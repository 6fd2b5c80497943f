#include <pianola/callable/number_log.hpp>

#include <pianola/trace/wrapped_number.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>

namespace pianola::callable {
namespace {

bool only_moves_memory(const trace::OpInfo& op) {
  return op.is_view || op.is_empty || op.name == "aten::clone" || op.name == "aten::copy_";
}

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

}  // namespace

void NumberLog::on_op_begin(const trace::OpSpan& op) {
  if (only_moves_memory(*op.info)) return;
  const std::size_t before = numbers_.size();
  for (const c10::IValue& value : op.inputs) add(value);
  if (numbers_.size() != before) ops_.push_back({.info = op.info, .numbers = numbers_.size() - before});
}

void NumberLog::add(const c10::IValue& value) {
  if (value.isBool()) {
    numbers_.emplace_back(value.toBool());
  } else if (value.isInt()) {
    numbers_.emplace_back(value.toInt());
  } else if (value.isDouble()) {
    numbers_.emplace_back(value.toDouble());
  } else if (value.isComplexDouble()) {
    numbers_.emplace_back(std::complex<double>(value.toComplexDouble()));
  } else if (value.isList()) {
    for (const c10::IValue& entry : value.toListRef()) add(entry);
  } else if (const auto number = trace::wrapped_number(value)) {
    numbers_.push_back(*number);
  }
}

bool NumberLog::are_alike(const std::vector<Op>& a, const std::vector<Op>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Op& x, const Op& y) { return x.numbers == y.numbers && x.info->computes_as(*y.info); });
}

std::optional<std::string> NumberLog::difference(const NumberLog& before, const NumberLog& now) {
  if (!are_alike(before.ops_, now.ops_)) return std::nullopt;
  std::size_t number = 0;
  for (const Op& op : now.ops_) {
    for (const std::size_t end = number + op.numbers; number < end; ++number) {
      const Number &was = before.numbers_[number], &is = now.numbers_[number];
      if (same(was, is)) continue;
      const auto text = [](const auto& value) { return in_words(value); };
      return fmt::format("{} was given {} in one call and {} in the next", op.info->name, std::visit(text, was),
                         std::visit(text, is));
    }
  }
  return std::nullopt;
}

}  // namespace pianola::callable
