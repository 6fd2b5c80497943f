#pragma once
#include <pianola/callable/options.hpp>
#include <pianola/config/cuda_graph_config.hpp>
#include <pianola/core/export.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/parallel/options.hpp>

#include <ATen/core/Generator.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {

/// Which of its two functions an iteration runs. Each has graphs, warm-up and counters of its own.
enum class Stage {
  training,
  validation,
};

/// "training", "validation".
[[nodiscard]] PIANOLA_API std::string_view in_words(Stage stage) noexcept;

/// How FullIteration warms up and captures, and what its calls return. Every field has a safe default.
struct FullIterationOptions {
  /// Eager iterations of a signature, for real, before it is captured; at least 1, which shows what the step uses.
  int warmup = 3;
  /// Signatures of a stage that keep a graph; beyond that the one not called for longest loses its own.
  int capacity = 8;
  /// `alias`: static tensors, which the next call of any stage overwrites. `clone`: copies that are the caller's.
  OutputPolicy output = OutputPolicy::alias;
  /// A step that cannot be captured (any more) goes on eagerly, and `on_fallback` is told. Off: the call throws.
  bool eager_fallback = false;
  /// Told, once per signature, why its calls stay eager; empty: a warning of torch's. Called on the thread of the call,
  /// after it ran.
  std::function<void(const std::string& reason)> on_fallback = {};
  /// Generators, besides the device's default one, that the step draws from: RngTracker::generators().
  std::vector<at::Generator> generators = {};
  /// Run after each iteration, eager or replayed, outside of the graph: a learning-rate schedule's step(), a check of what
  /// the device has reported. What it throws reaches the caller; the iteration has been made.
  std::function<void(Stage stage)> after_iteration = {};
  /// Most bytes that a graph's pool may take; 0: no limit. See CaptureOptions::memory_limit.
  std::size_t memory_limit = 0;
  /// Lay out the memory of each graph by a plan. See CaptureOptions::plan_memory.
  bool plan_memory = false;
  /// Accept a capture whose operations differ from those of the iteration before it; see
  /// GraphedOptions::accept_capture_path.
  bool accept_capture_path = false;
  /// Rebuild each graph on at most this many parallel lanes; 0: as captured; kAutoBranches: where a trial finds that
  /// faster. See CaptureOptions::branches.
  int branches = kAutoBranches;
  /// How `branches` goes about it.
  ParallelOptions parallel = {};
  /// What each replay checks. See CheckMode.
  CheckMode check = CheckMode::standard;
  /// Names of tensors, for messages.
  std::vector<NamedTensor> names = {};
  /// Pool and, with it, capture stream of all stages; empty: one of its own.
  GraphPoolRef pool = {};
  CaptureMode mode = CaptureMode::thread_local_;
};

/// What a configuration says of full iterations: the warm-up. It is checked first, together with this process's
/// environment, as before any capture (require_valid()).
/// @throws ConfigError  It violates rules, all of which are named; or its implementation is another one than
///                      `full_iteration`.
[[nodiscard]] PIANOLA_API FullIterationOptions options_from(const CudaGraphConfig& config);

}  // namespace pianola
