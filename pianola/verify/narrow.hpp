#pragma once
#include <pianola/trace/op_trace.hpp>
#include <pianola/verify/op_values.hpp>
#include <pianola/verify/report.hpp>
#include <pianola/verify/runner.hpp>
#include <pianola/verify/trace_change.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pianola::verification {

/// One eager run of a step with all that can be seen of it.
struct ObservedStep {
  Outcome outcome = {};
  OpTrace trace = {};
  OpValues values = {};
  trace::StorageSet own = {};  ///< See TracedRun.
  /// By the name of a tensor: the operation that writes it first; not there where none does.
  std::map<std::string, std::size_t> writers = {};
};

struct ObserveOptions {
  bool sites = true;   ///< Source lines.
  bool values = true;  ///< What each operation computes.
};

/// Runs eager's step and records its operations.
ObservedStep observe(Runner& runner, int step, const ObserveOptions& options);

/// What a trace says about one of its operations.
DifferenceOrigin describe(const OpTrace& trace, std::size_t op, std::string what);

/// Where two runs of the same operations part: the first that computes something else.
struct Parting {
  std::size_t op = 0;     ///< Index in the trace of the first run.
  std::string what = {};  ///< "its result 0 differs, its inputs are the same"
};
/// Nothing where they agree as far as both go.
std::optional<Parting> where_they_part(const std::vector<OpValue>& one, const std::vector<OpValue>& other);

/// Captures eager as it is before its first step, and replays that in step `step`, from eager's state. Returns what each
/// operation of the replay computed.
/// @param go_to  Brings everything to where eager's step begins.
/// @throws Error  Eager cannot be captured, or not replayed with the inputs of that step.
std::vector<OpValue> values_of_a_capture(Runner& runner, c10::Device device, int step,
                                         const std::function<void()>& go_to);

}  // namespace pianola::verification
