#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/parallel/branch_info.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {

/// What a function does when it is called with one signature, as its last warm-up call showed.
enum class GraphedKind {
  undecided,  ///< It is warming up.
  inference,  ///< Nothing that it returns requires grad.
  autograd,   ///< What it returns requires grad: the backward pass comes from outside, and is a graph as well.
  step,       ///< It trains by itself (backward, optimizer), or returns nothing: captured whole.
};

enum class GraphedState {
  warming_up,  ///< Calls run eagerly, and are watched.
  captured,    ///< Calls are replayed.
  eager,       ///< It cannot be captured; SignatureInfo::reason says why.
};

/// "inference"; "warming up".
[[nodiscard]] PIANOLA_API std::string_view to_string(GraphedKind kind) noexcept;
[[nodiscard]] PIANOLA_API std::string_view to_string(GraphedState state) noexcept;

/// One signature that `graphed` knows.
struct SignatureInfo {
  std::string signature;  ///< "Float[8, 16] cpu, with gradients".
  GraphedKind kind = GraphedKind::undecided;
  GraphedState state = GraphedState::warming_up;
  int warmup_calls = 0;         ///< Eager calls before the capture.
  std::size_t graphs = 0;       ///< That it keeps now: more than one if calls were in flight at once.
  std::size_t recaptures = 0;   ///< Captures after the first because what was captured had become stale.
  std::size_t replays = 0;      ///< Calls that were replayed.
  std::size_t eager_calls = 0;  ///< Calls that ran eagerly, warm-up included; not those in which parts are looked for.
  std::size_t misses = 0;       ///< Replays that read another value than their capture, so that the call ran eagerly.
  bool reads_values = false;    ///< It asks the device for values, which replays might check.
  std::string reason;           ///< Why it stays eager, or why its latest capture was dropped.
  std::string gain = {};        ///< "one launch in place of 530 operations"; empty where nothing is replayed.
  /// What GraphedOptions::branches came to, for each of the CUDA graphs (or tapes) of the graphs that it keeps now: a
  /// call with a backward pass has two.
  std::vector<BranchInfo> branches = {};
};

/// What a `graphed` function knows and keeps.
struct GraphedInfo {
  std::vector<SignatureInfo> signatures;  ///< Most recently called first.
  std::size_t evictions = 0;              ///< Signatures that lost their graphs to others.
  std::size_t input_bytes = 0;            ///< Of tensors that graphs copy inputs into; what several share counts once.
  std::vector<std::string> unfollowed =
      {};  ///< What it reads on the host (Python only) that cannot be compared at each call.
  std::vector<std::string> numbers = {};  ///< What becomes of numbers among the arguments that change (Python only).
  std::vector<std::string> parts =
      {};  ///< Modules that were found to read values that change, and stay eager (Python only).
  std::vector<std::string> compiled =
      {};  ///< What became of compiling its modules, where that was asked for (Python only).

  [[nodiscard]] PIANOLA_API Report report() const;
};

}  // namespace pianola
