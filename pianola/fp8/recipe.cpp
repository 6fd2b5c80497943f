#include <pianola/fp8/recipe.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace pianola::fp8 {
namespace {

constexpr std::array<std::string_view, 4> kScalings = {"delayed", "tensor", "row", "block"};

void check_at_least(std::int64_t least, std::string_view name, std::int64_t value) {
  if (value >= least) return;
  throw UsageError({.what = fmt::format("a recipe's {} must be {} or more, got {}", name, least, value)});
}

}  // namespace

void Recipe::check() const {
  check_at_least(1, "amax_history_length", amax_history_length);
  check_at_least(1, "interval", interval);
  check_at_least(0, "margin", margin);
  if (margin > 100) {
    throw UsageError({.what = fmt::format("a recipe's margin must be 100 or less, got {}", margin),
                      .fix = "it is an exponent of two: 0 or 1 do for most"});
  }
}

std::string Recipe::to_text() const {
  std::string text = fmt::format("{} scaling, {}", kScalings.at(static_cast<std::size_t>(scaling)),
                                 format == Format::hybrid ? "e4m3 and e5m2" : "e4m3");
  if (scaling == Scaling::delayed) {
    text += fmt::format(", {} of the last {}", amax_compute == AmaxCompute::max ? "the largest" : "the last",
                        amax_history_length);
    if (margin != 0) text += fmt::format(", margin {}", margin);
    if (interval != 1) text += fmt::format(", every {} updates", interval);
  }
  if (powers_of_two && scaling != Scaling::block) text += ", powers of two";
  return text;
}

double largest_of(c10::ScalarType type) {
  if (type == c10::kFloat8_e4m3fn) return 448.0;
  if (type == c10::kFloat8_e5m2) return 57344.0;
  throw UsageError({.what = fmt::format("{} is no type of 8 bits that products take", c10::toString(type)),
                    .fix = "use Float8_e4m3fn or Float8_e5m2"});
}

}  // namespace pianola::fp8
