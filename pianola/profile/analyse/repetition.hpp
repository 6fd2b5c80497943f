#pragma once
#include <pianola/profile/analyse/issue_sequence.hpp>

#include <cstddef>
#include <optional>
#include <vector>

namespace pianola::profiling {

/// The stretches of a sequence that are repetitions of one another.
struct Repetition {
  std::vector<std::size_t> cuts;  ///< Items at which one begins, 3 or more; the last may be cut off.
  std::size_t typical = 0;        ///< Index in `cuts` of one that is like most.

  [[nodiscard]] std::size_t begin() const noexcept { return cuts[typical]; }
  [[nodiscard]] std::size_t length() const noexcept { return cuts[typical + 1] - cuts[typical]; }
};

/// The period in which the work repeats, from some point on to the end of the sequence, or to where a much shorter
/// phase of other work follows that repeats as well, such as a validation; none where nothing repeats.
///
/// Tolerates other work before (warm-up), an unfinished repetition at the end, and some that differ a little.
/// Repetitions within each iteration (layers) are told from iterations by what does not fit into them and itself
/// occurs regularly: further work, an optimizer's step, the call of a module around them, or a longer gap.
/// Cost: O(n) for each of the few periods that are looked into, in each of a few phases.
[[nodiscard]] std::optional<Repetition> find_repetition(const IssueSequence& sequence);

/// The same repetitions, cut where the host begins to issue one: after an optimizer's step where one is seen, else at
/// the gap that is typically the largest. Cuts before the first and after the last are added where there is enough.
[[nodiscard]] Repetition begin_at_gap(const IssueSequence& sequence, const Repetition& repetition);

/// Share of a typical repetition's work that follows from an item on, up to as many items as it has; 0 to 1.
[[nodiscard]] double completeness(const IssueSequence& sequence, const Repetition& repetition, std::size_t from);

}  // namespace pianola::profiling
