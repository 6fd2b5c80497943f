#pragma once
#include <cstddef>

namespace pianola::callable {

/// Replays and recaptures of one signature. Beyond a few recaptures in a row the signature changes as fast as it is
/// captured; a graph that was replayed a while was worth its capture, and ends the row.
class Recaptures {
 public:
  void note_replay() noexcept {
    ++replays_;
    ++since_capture_;
  }
  /// A graph is to be made anew. False: too many were in a row.
  [[nodiscard]] bool note() noexcept {
    ++count_;
    in_a_row_ = since_capture_ < kManyReplays ? in_a_row_ + 1 : 1;
    since_capture_ = 0;
    return in_a_row_ <= kMostInARow;
  }
  /// The row ends.
  void start_over() noexcept { in_a_row_ = 0; }

  [[nodiscard]] std::size_t replays() const noexcept { return replays_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::size_t in_a_row() const noexcept { return in_a_row_; }

 private:
  static constexpr std::size_t kMostInARow = 8;
  static constexpr std::size_t kManyReplays = 16;

  std::size_t replays_ = 0;
  std::size_t count_ = 0;
  std::size_t in_a_row_ = 0;
  std::size_t since_capture_ = 0;
};

}  // namespace pianola::callable
