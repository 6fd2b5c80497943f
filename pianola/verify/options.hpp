#pragma once
#include <pianola/graph/options.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pianola {

/// How far two values may lie apart: |graph - eager| <= absolute + relative * |eager|, or at most `ulps` representable
/// numbers apart. NaN then equals NaN. All zero means equal bits.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  std::int64_t ulps = 0;
};

/// How verify() runs and compares. Every field has a safe default.
struct VerifyOptions {
  int steps = 5;  ///< Of each side, one after the other from the same state.
  /// What both sides are called with, step by step, in turn; empty: with nothing. Sets of other shapes may be among
  /// them where the graphed side takes them.
  std::vector<std::vector<at::Tensor>> inputs = {};
  /// Plays the training loop between two steps, the same for both sides; its argument counts the steps that are over.
  /// Tensors that it writes are put back too. Without `reset` it should do what its argument says, whatever it did before.
  std::function<void(int)> between = {};
  /// Puts back what steps and `between` change on the host (a scheduler's count, a learning rate): called before each of
  /// the runs, and at the end. Tensors and generators are put back without it.
  std::function<void()> reset = {};
  /// Calls of the graphed side before the comparison, for functions that capture themselves; put back afterwards.
  int graphed_warmup = 0;
  /// Per dtype; what is not named must be equal bit for bit.
  std::map<c10::ScalarType, Tolerance> tolerance = {};
  /// Where the sides differ, run eager a second time, so that a model that does not repeat itself is told from a graph
  /// that is wrong.
  bool repeat_eager = true;
  /// Before each graphed step fill with NaN what no tensor holds in the pools of graphs, and, behind its comparison,
  /// the results: what is read stale then shows. Off where a graph reads results of the step before on purpose.
  bool poison = true;
  /// On a difference, find the operation where it starts.
  bool narrow = true;
  /// Generators, besides the device's default ones, that the step draws from.
  std::vector<at::Generator> generators = {};
  /// A name for the report's heading.
  std::string subject = "step";
};

}  // namespace pianola
