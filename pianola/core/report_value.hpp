#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace pianola {

/// One value of a report: a text, a number, yes or no, or nothing ("-" in text, null in JSON).
/// Converts from what callers have at hand, so that rows read as `{"kernel", 12, 0.5, true}`.
class ReportValue {
 public:
  using Variant = std::variant<std::monostate, std::string, std::int64_t, std::uint64_t, double, bool>;

  ReportValue() = default;
  ReportValue(std::string text) : value_(std::move(text)) {}
  ReportValue(std::string_view text) : value_(std::string(text)) {}
  ReportValue(const char* text) : value_(std::string(text)) {}
  ReportValue(std::same_as<bool> auto yes) : value_(yes) {}
  ReportValue(std::floating_point auto number) : value_(static_cast<double>(number)) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) ReportValue(T number) {
    if constexpr (std::signed_integral<T>) {
      value_ = static_cast<std::int64_t>(number);
    } else {
      value_ = static_cast<std::uint64_t>(number);
    }
  }

  [[nodiscard]] const Variant& variant() const noexcept { return value_; }
  [[nodiscard]] bool is_absent() const noexcept { return std::holds_alternative<std::monostate>(value_); }
  [[nodiscard]] bool is_number() const noexcept { return value_.index() >= 2 && value_.index() <= 4; }

 private:
  Variant value_;
};

}  // namespace pianola
