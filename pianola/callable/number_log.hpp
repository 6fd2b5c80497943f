#pragma once
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/ivalue.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace pianola::callable {

// Note [Runs that are alike]
// Autograd moves a gradient into its leaf, and adds up gradients in place, if nobody else holds them. A capture does
// hold them, so that it records a copy instead, and another sum. Two runs count as alike if their operations that
// compute with numbers are the same, in place or not; what only allocates, describes and copies memory does not count.

/// The numbers of the host that one run gave to operations: a graph freezes them.
class NumberLog final : public trace::OpObserver {
 public:
  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;

  /// "aten::mul.Tensor was given 0.5 in one call and 0.25 in the next"; nothing where all numbers are the same, or the
  /// operations themselves differ, which has many reasons.
  [[nodiscard]] static std::optional<std::string> difference(const NumberLog& before, const NumberLog& now);

 private:
  using Number = std::variant<bool, std::int64_t, double, std::complex<double>>;
  struct Op {
    const trace::OpInfo* info;
    std::size_t numbers;
  };
  void add(const c10::IValue& value);
  [[nodiscard]] static bool are_alike(const std::vector<Op>& a, const std::vector<Op>& b);

  std::vector<Op> ops_;
  std::vector<Number> numbers_;  // of all operations, in order
};

}  // namespace pianola::callable
