#pragma once
#include "result.hpp"

#include <c10/core/Device.h>

#include <filesystem>
#include <vector>

namespace pianola::bench {

/// What a benchmark is told.
struct Settings {
  int blocks = 20;
  bool quick = false;
  std::filesystem::path traces = {};  ///< A folder for Chrome traces; empty: none are wanted.

  /// `count`, or a few where only the running counts.
  [[nodiscard]] int some(int count) const { return quick && count > 3 ? 3 : count; }
  [[nodiscard]] Plan plan(int iterations) const { return {.blocks = blocks, .iterations = some(iterations)}; }
};

/// One program of the suite.
struct Benchmark {
  const char* name;   ///< "cpu/..." or "cuda/..."
  const char* title;  ///< One line for readers.
  std::vector<Case> (*run)(const Settings& settings);
  bool has_traces = false;  ///< Whether it writes traces where Settings asks for them.
};

namespace cpu {
std::vector<Case> audit_cost(const Settings& settings);
std::vector<Case> callable_training_step(const Settings& settings);
std::vector<Case> full_iteration(const Settings& settings);
std::vector<Case> profile_million_events(const Settings& settings);
std::vector<Case> tape_training_step(const Settings& settings);
std::vector<Case> trace_overhead(const Settings& settings);
std::vector<Case> verify_cost(const Settings& settings);
}  // namespace cpu

#if PIANOLA_WITH_CUDA
namespace cuda {
std::vector<Case> replay_host(const Settings& settings);
std::vector<Case> training_step(const Settings& settings);
std::vector<Case> capture_time(const Settings& settings);
std::vector<Case> failed_capture(const Settings& settings);
std::vector<Case> trace_overhead(const Settings& settings);
std::vector<Case> callable_host(const Settings& settings);
std::vector<Case> callable_memory(const Settings& settings);
std::vector<Case> branches(const Settings& settings);
std::vector<Case> branches_large(const Settings& settings);
std::vector<Case> branches_capture(const Settings& settings);
std::vector<Case> audit_cost(const Settings& settings);
std::vector<Case> full_iteration(const Settings& settings);
std::vector<Case> finite_watch(const Settings& settings);
std::vector<Case> islands(const Settings& settings);
std::vector<Case> scopes(const Settings& settings);
std::vector<Case> static_inputs(const Settings& settings);
std::vector<Case> strict_replay(const Settings& settings);
std::vector<Case> verify_cost(const Settings& settings);
}  // namespace cuda
#endif

}  // namespace pianola::bench
