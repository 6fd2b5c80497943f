#pragma once
#include <pianola/core/export.hpp>

#include <c10/core/Scalar.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace pianola {

namespace graph {
class NumberNode;
class NamedNumbers;
}  // namespace graph

/// A number that a captured step gives to its operations, and that may be another one at each replay of its Graph.
///
///     pianola::Number rate = graph.number("rate", 0.1), decay = graph.number("decay", 0.01);
///     graph.capture([&] {
///       weight.mul_(1 - rate * decay);
///       weight.sub_(gradient, rate);
///     });
///     rate.set(0.05);
///     graph.replay();
///
/// What is calculated of it is a Number too, and is calculated in double as C++ does: a replay gives the operation what
/// eager would. An operation takes it where it takes an at::Scalar. `value()` is a plain number, which nobody can follow.
///
/// Copies are the same number. Threads: those of its Graph.
class PIANOLA_API Number {
 public:
  /// A plain number, for calculations.
  template <typename Plain>
  requires std::is_arithmetic_v<Plain> Number(Plain plain)
      : Number(Constant{static_cast<double>(plain)}) {}  // NOLINT(google-explicit-constructor)

  /// For an operation: `x * number`, `at::add(x, y, number)`.
  operator at::Scalar() const;  // NOLINT(google-explicit-constructor)
  /// The same for an argument of type double: give it to one operation, and use it for nothing else.
  [[nodiscard]] double argument() const;
  /// As it is now. A step that asks while it is captured may do anything with it: the number stays what it is then.
  [[nodiscard]] double value() const;

  /// What replays are given from the next one on. That one refuses what torch treats in ways of its own (0, 1, 2, 3, 0.5,
  /// -1, -2, infinity) where autograd or a composite function gives it to the operation: they may take another path then.
  /// @throws UsageError  It is calculated of others; it is not finite; or the captured step asked for its value. The number is
  ///                     as before.
  void set(double value);

  friend PIANOLA_API Number operator-(const Number& number);
  friend PIANOLA_API Number operator+(const Number& left, const Number& right);
  friend PIANOLA_API Number operator-(const Number& left, const Number& right);
  friend PIANOLA_API Number operator*(const Number& left, const Number& right);
  friend PIANOLA_API Number operator/(const Number& left, const Number& right);
  friend PIANOLA_API Number pow(const Number& base, const Number& exponent);
  friend PIANOLA_API Number sqrt(const Number& number);
  friend PIANOLA_API Number exp(const Number& number);
  friend PIANOLA_API Number log(const Number& number);
  friend PIANOLA_API Number min(const Number& left, const Number& right);
  friend PIANOLA_API Number max(const Number& left, const Number& right);

 private:
  friend class graph::NamedNumbers;
  struct Constant {
    double value;
  };
  explicit Number(Constant constant);
  explicit Number(std::shared_ptr<const graph::NumberNode> node) : node_(std::move(node)) {}

  std::shared_ptr<const graph::NumberNode> node_;
};

}  // namespace pianola
