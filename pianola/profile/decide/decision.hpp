#pragma once
#include <pianola/core/export.hpp>
#include <pianola/profile/analyse/analysis.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// How much of an iteration a graph takes, from the least to the most.
enum class GraphScope : std::uint8_t {
  layers,             ///< Each layer a graphed callable: two graphs a layer; loss and optimizer outside.
  forward_backward,   ///< The whole model one graphed callable: a graph forward, one backward.
  without_optimizer,  ///< One graph of forward, loss and backward; the optimizer outside.
  iteration           ///< One graph of everything.
};
inline constexpr std::size_t kGraphScopes = 4;
/// "each layer", "forward and backward", "iteration without optimizer", "whole iteration".
[[nodiscard]] PIANOLA_API const char* in_words(GraphScope scope) noexcept;

/// Device memory that the graphs of a scope would take as long as they live. The pool is not all extra memory: eager work
/// needs room for the same blocks, but may share it with other work.
struct ScopeMemory {
  std::optional<std::uint64_t> pool;  ///< Bytes; nothing: it cannot be told, see Decision::memory_unknown.
  std::uint64_t inputs = 0;           ///< Bytes of the static copies of inputs, as far as a profile shows them.
  std::uint64_t executables = 0;      ///< Bytes of the executable graphs, outside of torch's allocator.

  std::optional<bool> fits =
      {};  ///< Whether captures find room in MemoryUse::left; nothing: that or the pool is unknown.
  std::optional<bool> would_fit = {};  ///< The same once torch.cuda.empty_cache() was called.
  std::optional<std::uint64_t> planned =
      {};                    ///< Bytes of the pool with plan_memory, where it would fit with that alone.
  std::string verdict = {};  ///< Whether it fits, with the numbers; empty: unknown.
};

/// "yes", "not yet" (once torch.cuda.empty_cache() was called), "no"; "" where it is unknown.
[[nodiscard]] PIANOLA_API const char* fit_in_words(const ScopeMemory& memory) noexcept;

/// What an iteration would take in a scope.
struct ScopePrediction {
  GraphScope scope = GraphScope::iteration;
  std::string obstacle;  ///< Why it cannot be captured as the profile stands; empty: nothing seen.
  Nanoseconds low = 0, expected = 0, high = 0;  ///< Duration of an iteration; 0: it cannot be told, see `obstacle`.
  double speedup = 0;                           ///< Analysis::unrecorded over `expected`.
  double host_launches = 0;                     ///< Calls that launch, per iteration, kept or new.
  ScopeMemory memory = {};                      ///< All nothing where `expected` is 0.
  std::string cpp, python;                      ///< The call to write.
};

/// What a machine takes to issue work. Defaults are those of an H200 with torch 2.11 and CUDA 13 (benchmark
/// cuda/python_profile); what a profile shows replaces them.
struct MachineModel {
  Nanoseconds launch = 4000;        ///< Host time per operation that is issued eagerly, all of torch's work for it.
  Nanoseconds graph_launch = 7000;  ///< Host time to launch a graph.
  Nanoseconds callable = 25'000;    ///< Host time of one call of a graphed callable, autograd's included.
  Nanoseconds node_low = 0, node = 250, node_high = 600;  ///< Device time between two kernels of a graph.
  /// Device memory of an executable graph for each of its nodes. The driver takes it in pieces of 2 MiB, and has some to
  /// begin with. Measured on an H200: a graph of 4000 small kernels took 6 MiB; one of 1000 fitted into what it had.
  std::uint64_t node_bytes = 1600;
};

/// What lies between graphs of one iteration.
struct GraphCut {
  std::string what, fix;     ///< "the host waits in cudaStreamSynchronize (aten::item)", and what to do.
  double per_iteration = 0;  ///< How often.
  Nanoseconds idle = 0;      ///< Of the device there, per iteration.
};

/// Several graphs in an iteration: those of torch.compile around its graph breaks, those around parts that stay eager.
struct GraphFragments {
  double launches = 0;              ///< Of graphs, per iteration.
  double kernels = 0;               ///< Per launch of a graph.
  std::vector<GraphCut> cuts = {};  ///< Those with most idle time first.
  Nanoseconds idle = 0;             ///< Of the device between them, per iteration.
  Nanoseconds joined = 0;           ///< What an iteration would take if they were one.
  double speedup = 0;               ///< Analysis::unrecorded over `joined`.
};

enum class GraphVerdict : std::uint8_t {
  graph,       ///< Worth it.
  small_gain,  ///< A little would be gained.
  leave,       ///< The device is busy already, little would be gained, or no graph fits into the device's memory.
  graphed,     ///< Graphs do the work already.
  fragmented,  ///< They do, and one in their place would be faster.
  unknown      ///< The profile does not tell.
};

/// "graph", "small gain", "leave", "graphed already", "join the graphs", "unknown".
[[nodiscard]] PIANOLA_API const char* in_words(GraphVerdict verdict) noexcept;

struct Decision {
  GraphVerdict verdict = GraphVerdict::unknown;
  std::string headline = {};                ///< "Graph it: 2.4 times as fast, 5.1 instead of 12.3 ms per iteration."
  std::vector<std::string> reasons = {};    ///< Sentences with the numbers behind it.
  std::vector<std::string> obstacles = {};  ///< What stands in the way, each with what to do.
  std::vector<ScopePrediction> scopes =
      {};                ///< In the order of GraphScope, all of them; empty where unknown or graphed.
  std::size_t best = 0;  ///< The one that the verdict is about, in `scopes`.
  std::string memory_unknown =
      {};  ///< Why pools, or whether they fit, cannot be told, and what to do; empty: they can.
  std::optional<GraphFragments> fragments = {};  ///< Where an iteration launches several graphs.
  MachineModel model = {};                       ///< What the prediction used.
};

/// Whether a graph helps, and which: of the scopes that fit into the device's memory (or may, for all that the profile says) the
/// fastest, or the smallest of those within 3 % of it. It is worth it from 1.15
/// times as fast on; not if the device is busy more than 95 % of the time, less than 1.05 times is gained, or fewer than 4
/// calls are saved.
[[nodiscard]] PIANOLA_API Decision decide(const Timeline& timeline, const Analysis& analysis,
                                          const MachineModel& model = {});

}  // namespace pianola
