#pragma once
#include <pianola/cuda/node_change.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pianola {

// Note [Words that follow numbers]
// Work that is given another number at each call, as an optimizer's kernels are, does not have to be captured anew each time: the
// words of its nodes that hold the number follow it. Which words these are, trial captures show, which are never run: the same
// work with numbers of our own, far apart and each another one, so that no two of them and no rounding can be taken for each
// other. Each word that differs between trials must hold one of the numbers, in one of the forms that kernels are given numbers
// in, in all trials; where one does not, the work is captured anew as before. What differs between two captures with the same
// numbers is a slot that nobody filled.
// Code on the host may treat some numbers in ways of their own: x ** 2 is another kernel than x ** 2.1, and a sign may be refused.
// Numbers like these are never followed (is_ordinary()).

/// A number among the arguments of an operation.
struct Numeral {
  enum class Kind : std::uint8_t { none, boolean, integer, real };
  double value = 0;
  Kind kind = Kind::none;
  std::int64_t bits =
      0;  ///< Of the number itself: neither an integer that no double is, nor the sign of a zero, is lost.

  [[nodiscard]] static Numeral of(double value) noexcept;
  [[nodiscard]] static Numeral of(std::int64_t value) noexcept;
  friend bool operator==(const Numeral& a, const Numeral& b) noexcept { return a.kind == b.kind && a.bits == b.bits; }
};

/// Whether no code treats it in a way of its own, and every form of it is exact or rounded as usual.
[[nodiscard]] bool is_ordinary(const Numeral& numeral);

/// Bits of a word that nobody filled, as two captures of the same arguments show: whole slots of 4 bytes, the smallest that
/// kernels leave open.
[[nodiscard]] std::uint64_t unfilled_slots(std::uint64_t one, std::uint64_t other);

/// Which words of an operation's nodes hold which of its numbers.
class NumberWords {
 public:
  /// One capture of the operation.
  struct Capture {
    std::vector<NodeChange> changes;
    std::vector<Numeral> numbers;
  };

  /// Numbers for a trial: other ones in place of those that `varies` has, which are ordinary.
  [[nodiscard]] static std::vector<Numeral> trial(std::span<const Numeral> numbers, const std::vector<bool>& varies,
                                                  unsigned round);
  /// @param trials  Three or more, with numbers of trial(), each of another round.
  /// @param again   Of the first trial, once more with the same numbers.
  /// @return        Nothing where the words do not tell.
  [[nodiscard]] static std::optional<NumberWords> find(std::vector<Capture> trials, std::span<const NodeChange> again,
                                                       std::vector<bool> varies);

  /// Whether a capture with these numbers is as was expected.
  [[nodiscard]] bool fits(std::span<const NodeChange> changes, std::span<const Numeral> numbers) const;
  /// Puts the numbers into `changes`, which fit others. @return  False: it has to be captured to know, and some may be in.
  [[nodiscard]] bool follow(std::span<NodeChange> changes, std::span<const Numeral> numbers) const;
  /// The bits of a word that follow numbers.
  [[nodiscard]] std::uint64_t bits(std::size_t node, std::size_t index) const { return masks_[node][index]; }

 private:
  enum class Form : std::uint8_t {
    real32,
    real64,
    negated32,
    negated64,
    inverse32,
    inverse_of_32,
    inverse64,
    integer32,
    half,
    bfloat16
  };
  struct Candidate {
    std::size_t number;
    Form form;
  };
  struct Slot {
    std::size_t node;
    std::size_t index;
    unsigned shift;  // in bits
    unsigned bytes;
    std::vector<Candidate> candidates;
  };
  class Finder;

  [[nodiscard]] static unsigned bytes_of(Form form);
  [[nodiscard]] static std::uint64_t bits_of(Form form, double value);
  [[nodiscard]] static std::uint64_t mask_of(const Slot& slot);
  [[nodiscard]] bool are_alike(std::span<const Numeral> numbers) const;
  [[nodiscard]] static std::optional<std::uint64_t> held_by(const Slot& slot, std::span<const Numeral> numbers);

  std::vector<Slot> slots_;
  std::vector<std::vector<std::uint64_t>> masks_;  // of each node, for each word
  std::vector<NodeChange> like_;
  std::vector<Numeral> numbers_;  // of the trial that `like_` is of
  std::vector<bool> varies_;
};

}  // namespace pianola
