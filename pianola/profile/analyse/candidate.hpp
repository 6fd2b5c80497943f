#pragma once
#include <pianola/profile/analyse/anchors.hpp>
#include <pianola/profile/analyse/repetition.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pianola::profiling {

/// A sequence cut at anchors, and how alike the parts are.
struct Candidate {
  Repetition repetition;
  std::uint64_t weight = 0;      ///< Pieces of work of a typical part.
  std::uint64_t covered = 0;     ///< Pieces that are those of typical parts, of an unfinished first and last one too.
  double unlike = 0;             ///< Share of the work that is more or less than in typical parts.
  std::vector<std::size_t> odd;  ///< Parts, by their index in `cuts`, that differ by more than a little.

  [[nodiscard]] std::size_t parts() const noexcept { return repetition.cuts.size() - 1; }
};

/// Judges whether anchors cut a sequence into repetitions. Borrows the sequence.
class CandidateJudge {
 public:
  explicit CandidateJudge(const IssueSequence& sequence);

  /// None where less than 90 % of the work is alike or less than two thirds come in one order, where fewer than 90 % of the parts have an optimizer's step though
  /// there are such steps, or where most parts lie within one call of a module with others.
  [[nodiscard]] std::optional<Candidate> judge(const Anchors& anchors);

 private:
  struct Overlap {
    std::uint64_t common = 0;
    std::uint64_t larger = 0;  // Of the two weights.
    std::size_t in_order = 0;  // Items that follow each other as in the typical part.
  };

  [[nodiscard]] std::uint64_t weight(std::size_t begin, std::size_t end) const { return weight_[end] - weight_[begin]; }
  [[nodiscard]] std::uint64_t contents(std::size_t begin, std::size_t end) const {
    return contents_[end] - contents_[begin];
  }
  [[nodiscard]] bool are_iterations(const std::vector<std::size_t>& cuts) const;
  [[nodiscard]] std::size_t typical_part(const std::vector<std::size_t>& cuts) const;
  [[nodiscard]] std::size_t in_order(std::size_t begin, std::size_t end, const Repetition& repetition) const;
  [[nodiscard]] Overlap overlap(std::size_t begin, std::size_t end, const Repetition& repetition);

  const IssueSequence& sequence_;
  std::vector<std::uint64_t> weight_;    // Of all items before.
  std::vector<std::uint64_t> contents_;  // A sum that tells sets of items apart, of all items before.
  std::vector<std::uint32_t> optimizer_steps_;
  std::vector<std::uint32_t> wanted_;  // By symbol, how often it occurs in the typical part.
};

}  // namespace pianola::profiling
