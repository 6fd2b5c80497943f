#pragma once
#include <pianola/trace/op_trace.hpp>
#include <pianola/trace/storage_set.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace pianola::verification {

/// Something of an operation that a graph keeps as it was captured, and that another run did otherwise.
struct TraceChange {
  std::size_t op = 0;     ///< Index in the later trace.
  std::string what = {};  ///< "its argument 2 (alpha) is -0.05, and was -0.1 in step 1"
};

/// A run of a step, and when it was.
struct TracedRun {
  const OpTrace* trace = nullptr;
  /// Memory that may be another each time: copies of inputs, gradients that eager makes.
  trace::StorageSet own = {};
  std::string when = {};  ///< "in step 1"
};

/// What differs between two runs of one step, in the order of the operations: numbers, shapes, tensors that were replaced.
/// Ends with the first operation that is another one.
std::vector<TraceChange> changes_between(const TracedRun& earlier, const TracedRun& later);

/// Of operations on CUDA: numbers that they take from tensors in host memory, which a graph keeps too, whether they
/// changed or not.
std::vector<TraceChange> host_numbers(const OpTrace& trace);

}  // namespace pianola::verification
