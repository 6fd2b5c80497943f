#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/operation_log.hpp>

#include <optional>

namespace pianola::graph {

// Note [Captures that take another path]
// A library may ask whether it is captured, and do otherwise then: a graph would repeat what eager never does. So the
// operations of a recording are compared with those of the last warm-up call. That says something only where the calls are
// alike themselves: a first call may make what later ones find, and a step may do otherwise each time. So the last two have
// to agree on their operations; of the numbers that these were given, those count in which they agree.

/// Whether a recording does what the warm-up calls before it did.
class PathCheck {
 public:
  /// The first of the calls that are compared.
  static int first_call(int warmup) noexcept { return warmup - 2; }
  [[nodiscard]] static bool can_tell(int warmup) noexcept { return first_call(warmup) >= 0; }

  /// Who sees the next warm-up call.
  trace::OpObserver& next_call();
  /// Who sees the recording.
  trace::OpObserver& recording() { return recorded_; }
  /// What the recording did otherwise; nothing where the calls were not alike, or it is empty.
  [[nodiscard]] std::optional<Diagnosis> difference() const;
  /// A number that was another one in each of the last two calls and in the recording: replays repeat the recording's, where eager calls
  /// would go on. Nothing where difference() has something.
  [[nodiscard]] std::optional<Diagnosis> changing_number() const;

 private:
  std::optional<trace::OperationLog> before_, last_;
  trace::OperationLog recorded_;
};

}  // namespace pianola::graph
