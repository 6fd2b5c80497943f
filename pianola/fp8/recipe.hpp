#pragma once
#include <pianola/core/export.hpp>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace pianola::fp8 {

/// Which of the two types of 8 bits. e4m3 has 3 bits of mantissa and ends at 448, e5m2 has 2 and ends at 57344.
/// Source: Micikevicius et al., FP8 Formats for Deep Learning (2022), tables 1 and 2; c10's Float8_e4m3fn and Float8_e5m2.
enum class Format : std::uint8_t {
  hybrid,  ///< e4m3 for inputs and weights, e5m2 for gradients, whose range is wider.
  e4m3,    ///< For all.
};

/// How the scale of a tensor is found. A scale is what a tensor is multiplied by before it is cast.
enum class Scaling : std::uint8_t {
  delayed,  ///< One for the tensor, from its largest magnitudes in the calls before. The tensor is read once.
  tensor,   ///< One for the tensor, from itself.
  row,      ///< One for each row, along which the product sums.
  block,    ///< One for each 1 x 128 of inputs and gradients, and for each 128 x 128 of weights; powers of two.
};

/// How an amax history becomes one number.
enum class AmaxCompute : std::uint8_t { max, most_recent };

/// What a model computes with in 8 bits, and how. Names and meanings of the first five are Transformer Engine's.
struct PIANOLA_API Recipe {
  Scaling scaling = Scaling::delayed;
  Format format = Format::hybrid;
  int margin = 0;                               ///< Delayed: scales are 2^margin smaller, for what may grow meanwhile.
  std::int64_t amax_history_length = 1024;      ///< Delayed: from how many updates.
  AmaxCompute amax_compute = AmaxCompute::max;  ///< Delayed.
  std::int64_t interval = 1;                    ///< Delayed: scales are computed anew at every interval-th update.
  bool powers_of_two = false;                   ///< tensor and row: scales are rounded down to one. block: always.

  friend bool operator==(const Recipe&, const Recipe&) = default;

  [[nodiscard]] c10::ScalarType forward_type() const noexcept { return c10::kFloat8_e4m3fn; }
  [[nodiscard]] c10::ScalarType gradient_type() const noexcept {
    return format == Format::hybrid ? c10::kFloat8_e5m2 : c10::kFloat8_e4m3fn;
  }
  /// @throws UsageError  A number is out of its range.
  void check() const;
  /// "delayed, hybrid, history of 1024"
  [[nodiscard]] std::string to_text() const;
};

/// The largest number of a type: 448 or 57344. @throws UsageError  It is not one of the two.
[[nodiscard]] PIANOLA_API double largest_of(c10::ScalarType type);

}  // namespace pianola::fp8
