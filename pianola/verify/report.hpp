#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/source_place.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {

/// How two tensors that should be the same differ.
struct TensorDifference {
  std::string name = {};  ///< "output 0", "input 1", "grad of model.0.weight", "model.0.weight", "generator of cuda:0".
  std::string role = {};  ///< "output", "input" (as the step left it), "gradient", "state", "generator".
  int step = 0;           ///< From 1.
  std::string shape = {};  ///< "Float [16, 64]"
  std::size_t elements = 0;
  std::size_t differing = 0;  ///< Elements that differ beyond the tolerance.
  double max_absolute = 0;    ///< Infinite where NaN or an infinity meets a number.
  double max_relative = 0;    ///< To eager's value, where that is not 0.
  std::int64_t max_ulps = 0;  ///< Of floating-point tensors; NaN against a number is the largest value.
  std::string first = {};     ///< "[3, 7]: eager 0.125, graph 0.5"
  std::string note = {};      ///< Where there is more to say: another shape, undefined on one side.
};

/// Where a difference starts.
struct DifferenceOrigin {
  std::string op = {};      ///< "aten::mul.Tensor"
  std::size_t number = 0;   ///< Of the operations of the step, from 1.
  std::string module = {};  ///< Module path or open user scopes.
  SourcePlace place = {};
  std::string what = {};  ///< "its result 0 differs, its inputs are the same"
};

/// A tensor that the step writes and nobody listed.
struct MissingState {
  std::string shape = {};
  std::string op = {};  ///< The first that writes it.
  SourcePlace place = {};
};

enum class Verdict {
  equal,             ///< Bit for bit, or within the tolerance where one was given.
  differs,           ///< The graphed side computes something else.
  nondeterministic,  ///< Eager does not repeat itself: what the graph does cannot be told from that.
  failed,            ///< One side threw, or there was nothing to compare.
};

/// "equal", "differs", "nondeterministic", "failed".
[[nodiscard]] PIANOLA_API std::string_view in_words(Verdict verdict) noexcept;

/// What verify() found out.
struct PIANOLA_API VerifyReport {
  Verdict verdict = Verdict::equal;
  std::string subject = {};
  int steps = 0;                  ///< That were compared.
  std::size_t tensors = 0;        ///< Compared at each step.
  bool within_tolerance = false;  ///< Equal only thanks to a tolerance.
  std::string error = {};         ///< Why `failed`: what was thrown, by which side, in which step.
  /// Of the first step that differs, in the order in which eager computes them; empty where equal.
  std::vector<TensorDifference> differences = {};
  /// Tensors in which two eager runs differ, at the first step in which one does.
  std::vector<TensorDifference> eager_differences = {};
  std::optional<DifferenceOrigin> origin = {};
  std::vector<MissingState> missing_state = {};
  std::vector<std::string> notes = {};
  std::chrono::microseconds eager_time{};  ///< Of all its steps, comparing not counted.
  std::chrono::microseconds graphed_time{};
  std::chrono::microseconds total_time{};

  [[nodiscard]] bool ok() const noexcept { return verdict == Verdict::equal; }
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] std::string to_json(int indent = 2) const;
  /// For programs: 0 where ok(), 1 where `failed`, 3 otherwise.
  [[nodiscard]] int exit_code() const noexcept;
};

}  // namespace pianola
