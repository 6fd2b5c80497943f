#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstdint>
#include <string>

namespace pianola::profiling::testing {

/// A training run in round numbers. All times are microseconds.
struct TrainingShape {
  int iterations = 6;
  int layers = 4;
  int kernels_per_layer = 10;  ///< Forward; backward has twice as many.
  int optimizer_kernels = 5;
  std::int64_t kernel = 4;    ///< Of each kernel.
  std::int64_t pace = 10;     ///< Between the begins of two launches on the host.
  std::int64_t pause = 50;    ///< Of the host between two iterations.
  std::int64_t data = 0;      ///< Of that, inside the data loader.
  bool ranges = true;         ///< Modules, autograd's nodes and the optimizer are named.
  bool reads_loss = false;    ///< The host waits for the device at the end of an iteration.
  bool reads_inside = false;  ///< And between forward and backward.
  bool graphed = false;       ///< One launch of a graph per iteration, kernels 1 us apart.
  int extra_kernels = 0;      ///< Iteration i has (i % 3) times as many forward kernels more.
  bool memory = false;        ///< What the allocator does is recorded, as TrainingMemory says. Not of graphs.
  std::int64_t device = 0;    ///< MiB that the device has; 0: it is not known.
  std::int64_t batch = 0;     ///< MiB that are copied to the device at the begin of each iteration, into a new block.
};

/// What such a run allocates, in MiB.
struct TrainingMemory {
  static constexpr std::int64_t parameters = 100;    ///< There from the begin on.
  static constexpr std::int64_t activation = 8;      ///< Of a layer, until its backward pass has ended.
  static constexpr std::int64_t scratch = 1;         ///< Of each pass of a layer, until it ends.
  static constexpr std::int64_t gradient = 12;       ///< Of a layer's parameters, until the next iteration begins.
  static constexpr std::int64_t input_gradient = 8;  ///< Of a layer, until the next backward pass has ended.
  static constexpr std::int64_t optimizer = 24;      ///< Scratch of the optimizer.
  static constexpr std::int64_t reserved = 512;
};

/// Kernels begin when their launch has begun 5 us before and the one before has ended; launches take 4 us.
[[nodiscard]] Timeline training_timeline(const TrainingShape& shape);

}  // namespace pianola::profiling::testing
