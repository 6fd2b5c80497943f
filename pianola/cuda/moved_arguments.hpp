#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/cuda/node_change.hpp>
#include <pianola/cuda/number_words.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola {

// Note [Arguments that move]
// Work that is given the same tensors in other places, as a cache's row at each position, does not have to be captured anew
// each time: only the words of its nodes that address such a tensor follow it. Which words these are, captures show. Each word
// that differs between two of them must have moved exactly as one of the tensors did, within its memory, and two more captures
// must agree. Slots of a struct that nobody filled hold what was on the stack: what differs between two captures with the same
// arguments at the same places is no argument, and stays as the last capture left it. A kernel may depend on how an address is
// aligned: only alignments that a capture showed are followed.

/// Where an argument of an operation lies.
struct Place {
  std::uint64_t address = 0;
  ByteSpan memory = {};  ///< That it is part of.

  /// Whether no kernel can tell both by their alignment.
  [[nodiscard]] bool is_aligned_as(const Place& other) const noexcept {
    return address % kWidestAccess == other.address % kWidestAccess;
  }
  static constexpr std::uint64_t kWidestAccess = 64;  ///< No access of a kernel is wider, in bytes.
  friend bool operator==(const Place&, const Place&) = default;
};

/// Which words of an operation's nodes follow which of its arguments.
class MovedArguments {
 public:
  /// The work was captured anew, with arguments at these places.
  void note(std::span<const Place> places);
  /// The same, where nothing but the places, and numbers that words are known to follow, differs from the time before.
  /// @param before   What the nodes were given that time.
  /// @param after    What they are given now.
  /// @param again    The same, of another capture.
  /// @param numbers  nullptr: no number differs.
  void learn(std::span<const NodeChange> before, std::span<const NodeChange> after, std::span<const NodeChange> again,
             std::span<const Place> places, const NumberWords* numbers = nullptr);
  /// What the nodes do has changed: nothing is known of them any more.
  void forget();
  /// Whether a capture could still show something: arguments at these places cannot be followed yet.
  [[nodiscard]] bool wants_to_learn(std::span<const Place> places) const;
  /// Makes `changes`, of the last time, those of arguments at `places`. @return  False: it has to be captured to know.
  [[nodiscard]] bool follow(std::span<NodeChange> changes, std::span<const Place> places);

 private:
  struct Word {
    std::size_t node;
    std::size_t index;
    std::size_t place;
    friend bool operator==(const Word&, const Word&) = default;
  };
  struct Known {
    bool has_moved = false;
    unsigned proofs = 0;           // captures that moved it as was expected
    std::uint64_t alignments = 0;  // a bit for each that was captured
  };
  void note_unfilled(std::span<const NodeChange> after, std::span<const NodeChange> again);
  [[nodiscard]] bool is_known(std::size_t place, std::uint64_t address) const;
  [[nodiscard]] bool add(std::span<const NodeChange> before, std::span<const NodeChange> after,
                         std::span<const Place> places, const NumberWords* numbers);
  [[nodiscard]] std::vector<Word> words_of(std::size_t place) const;

  std::vector<Place> places_;  // of the last time
  std::vector<Known> known_;   // of each place
  std::vector<Word> words_;
  std::vector<std::vector<std::uint64_t>> unfilled_;  // of each node, for each word: bits that nobody filled
  unsigned failures_ = 0;
};

}  // namespace pianola
