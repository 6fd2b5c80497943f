#pragma once
#include <pianola/trace/op_trace.hpp>

#include <cstddef>
#include <optional>

namespace pianola::auditing {

/// Two records of the same tensor argument, or result, in two runs differ in this.
enum class TensorChange { none, shape, dtype, strides, device };

struct FirstChange {
  std::size_t op = 0;
  bool result = false;     ///< Of a result, not of an argument.
  std::size_t tensor = 0;  ///< Index among the operation's input or output records.
  TensorChange kind = TensorChange::none;
};

/// How far two runs of a step do the same.
struct Alignment {
  std::size_t ops = 0;    ///< So many operations, from the first, are the same operators on as many tensors.
  bool complete = false;  ///< Neither run goes on.
  std::optional<FirstChange> first_change;  ///< The first tensor among them that looks different.
};

[[nodiscard]] Alignment align(const OpTrace& a, const OpTrace& b);

/// Strides of dimensions that have one entry do not matter.
[[nodiscard]] TensorChange change_between(const OpTrace& a, const TensorRecord& in_a, const OpTrace& b,
                                          const TensorRecord& in_b);

}  // namespace pianola::auditing
