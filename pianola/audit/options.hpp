#pragma once
#include <pianola/graph/options.hpp>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// How audit() runs the step. Every field has a safe default.
struct AuditOptions {
  /// Runs that are watched; at least 2, because a change shows only between two.
  int iterations = 3;
  /// Runs before them that are not watched, so that what happens only once (lazy state, autotuning) is over.
  int warmup = 1;
  /// Plays the training loop between two runs, warm-up runs included: the next batch, a scheduler's step. Its argument
  /// counts the runs that are over, from 1. Empty: nothing happens between runs.
  std::function<void(int)> between = {};
  /// Record the source line of each operation. Off: findings name the operation alone, and runs are faster.
  bool sources = true;
  /// Try a capture afterwards, which finds what nothing else shows; on CUDA two more, whose kernels' arguments are
  /// compared.
  bool trial = true;
  /// Put back what all runs wrote: tensors, gradients, generators.
  bool restore = true;
  /// What the step's owner calls its tensors, for messages: parameters, buffers, static inputs.
  std::vector<NamedTensor> names = {};
  /// Generators, besides the device's default one, that the capture will be told of.
  std::vector<at::Generator> generators = {};
  /// Warm-up runs that the capture will have; see rule PG1104.
  int capture_warmup = 3;
  /// Where the graph will be; empty: where most of the step's operations run.
  std::optional<c10::Device> device = {};
  /// Bytes that the driver has left for the graph, where it is going to run elsewhere; empty: the device is asked. See rule PG908.
  std::optional<std::size_t> free_memory = {};
  /// A name for the report's heading.
  std::string subject = "step";
};

}  // namespace pianola
