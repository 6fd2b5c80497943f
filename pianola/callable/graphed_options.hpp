#pragma once
#include <pianola/callable/options.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/parallel/options.hpp>

#include <ATen/core/Generator.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola {

/// What of a step stays on the host while its graph is replayed.
enum class IslandPolicy : std::uint8_t {
  marked,  ///< What pianola::eager() marks. A step that reads a value elsewhere stays eager.
  /// The reads of values as well: a replay runs up to each, reads, and goes on where it is what it was; see SignatureInfo::misses.
  automatic,
};

/// When `graphed` captures, how many graphs it keeps, and what its calls return. Every field has a safe default.
struct GraphedOptions {
  /// Eager calls of a signature before it is captured, for real; at least 1, which shows what the function does. Raise it
  /// if autotuning or lazily made state settles later.
  int warmup = 3;
  /// Signatures that keep graphs at once; beyond that the one not called for longest loses its own.
  int capacity = 64;
  /// Graphs of one signature: calls between forward and backward at once, or steps that find gradients in different
  /// states. Further calls run eagerly.
  int max_in_flight = 4;
  /// Copies are the caller's. `alias` spares them: the next call, of whatever signature, may overwrite what it
  /// returned.
  OutputPolicy output = OutputPolicy::clone;
  /// See GradPolicy; for calls whose backward runs outside.
  GradPolicy grad = GradPolicy::accumulate;
  /// See CallableOptions::delay_weight_gradients; for calls whose backward runs outside. Once a signature is captured,
  /// Graphed::backward_weights() has to be called for each backward pass; those of eager calls leave nothing for it.
  bool delay_weight_gradients = false;
  /// Lets backward(retain_graph=true) be followed by another one.
  bool retain_graph = false;
  /// Pool for graphs without a backward pass; empty: one per device. See Note [Memory of captures].
  GraphPoolRef pool = {};
  /// Functions with the same one run their graphs one after the other, and share workspaces; empty: this one shares with none.
  std::shared_ptr<const GraphPoolFamily> family = {};
  /// Generators, besides the device's default one, that the function draws from.
  std::vector<at::Generator> generators = {};
  /// Most bytes that a graph's pool may take, as its last eager call showed it; 0: no limit. Calls that would take more stay eager. Of a
  /// call whose backward runs outside, what the forward pass takes. So do calls whose static inputs alone take more.
  std::size_t memory_limit = 0;
  /// Lay out the memory of calls that train by themselves, or are whole iterations, by a plan; see CaptureOptions::plan_memory. All
  /// signatures share a region: what their graphs leave behind, and the largest scratch. Other GPUs and processes cannot read it.
  bool plan_memory = false;
  /// Accept a capture whose operations differ from those of the call before it, because a library asks whether it is
  /// captured. Off: such calls stay eager.
  bool accept_capture_path = false;
  /// Rebuild each graph on at most this many parallel lanes; 0: as captured; kAutoBranches: where a trial finds that faster.
  /// SignatureInfo::branches says what it came to. See CaptureOptions::branches.
  int branches = kAutoBranches;
  IslandPolicy islands = IslandPolicy::automatic;
  /// How `branches` goes about it.
  ParallelOptions parallel = {};
  CaptureMode mode = CaptureMode::thread_local_;
  /// Told, once per signature, why its calls stay eager; empty: a warning of torch's. Called on the thread of the call,
  /// after it ran.
  std::function<void(const std::string& reason)> on_fallback = {};
};

}  // namespace pianola
