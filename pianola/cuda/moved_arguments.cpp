#include <pianola/cuda/moved_arguments.hpp>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace pianola {
namespace {

constexpr unsigned kProofs = 2;    // on places that were not used to find the words
constexpr unsigned kFailures = 8;  // after which captures are not expected to show anything

std::uint64_t alignment_bit(std::uint64_t address) { return std::uint64_t{1} << address % Place::kWidestAccess; }

// The argument that moved as the word did. Nothing: none, or one of several.
std::optional<std::size_t> mover_of(std::uint64_t was, std::uint64_t is, std::span<const Place> before,
                                    std::span<const Place> after) {
  std::optional<std::size_t> mover;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const bool moved_so = after[i].memory.contains(was) && after[i].memory.contains(is) &&
                          is - was == after[i].address - before[i].address;
    if (!moved_so) continue;
    if (mover) return std::nullopt;
    mover = i;
  }
  return mover;
}

// Where two arguments share memory, an operation may ask whether they overlap.
bool any_overlap(std::span<const Place> places) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (std::size_t k = i + 1; k < places.size(); ++k) {
      if (places[i].memory.overlaps(places[k].memory)) return true;
    }
  }
  return false;
}

bool is_same_memory(std::span<const Place> one, std::span<const Place> other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const Place& a, const Place& b) { return a.memory == b.memory; });
}

}  // namespace

void MovedArguments::note(std::span<const Place> places) { places_.assign(places.begin(), places.end()); }

void MovedArguments::learn(std::span<const NodeChange> before, std::span<const NodeChange> after,
                           std::span<const NodeChange> again, std::span<const Place> places,
                           const NumberWords* numbers) {
  const bool is_comparable = is_same_memory(places_, places) && before.size() == after.size() &&
                             again.size() == after.size() && !any_overlap(places);
  known_.resize(places.size());
  if (is_comparable) note_unfilled(after, again);
  if (!is_comparable || !add(before, after, places, numbers)) {
    ++failures_;
    forget();
  }
  note(places);
}

void MovedArguments::forget() {
  known_.assign(known_.size(), {});
  words_.clear();
}

void MovedArguments::note_unfilled(std::span<const NodeChange> after, std::span<const NodeChange> again) {
  unfilled_.resize(after.size());
  for (std::size_t node = 0; node < after.size(); ++node) {
    unfilled_[node].resize(after[node].words());
    for (std::size_t index = 0; index < std::min(after[node].words(), again[node].words()); ++index) {
      unfilled_[node][index] |= unfilled_slots(after[node].word(index), again[node].word(index));
    }
  }
}

bool MovedArguments::add(std::span<const NodeChange> before, std::span<const NodeChange> after,
                         std::span<const Place> places, const NumberWords* numbers) {
  std::vector<Word> found;
  for (std::size_t node = 0; node < after.size(); ++node) {
    if (!after[node].does_as(before[node])) return false;
    for (std::size_t index = 0; index < after[node].words(); ++index) {
      const std::uint64_t was = before[node].word(index), is = after[node].word(index);
      const std::uint64_t others = unfilled_[node][index] | (numbers != nullptr ? numbers->bits(node, index) : 0);
      if (((was ^ is) & ~others) == 0) continue;
      if (others != 0) return false;
      const auto place = mover_of(was, is, places_, places);
      if (!place) return false;
      found.push_back({.node = node, .index = index, .place = *place});
    }
  }
  for (std::size_t place = 0; place < places.size(); ++place) {
    if (places[place] == places_[place]) continue;
    Known& known = known_[place];
    std::vector<Word> its;
    std::copy_if(found.begin(), found.end(), std::back_inserter(its),
                 [&](const Word& word) { return word.place == place; });
    if (known.has_moved) {
      if (its != words_of(place)) return false;
      ++known.proofs;
    } else {
      words_.insert(words_.end(), its.begin(), its.end());
      known.has_moved = true;
    }
    known.alignments |= alignment_bit(places_[place].address) | alignment_bit(places[place].address);
  }
  return true;
}

std::vector<MovedArguments::Word> MovedArguments::words_of(std::size_t place) const {
  std::vector<Word> words;
  std::copy_if(words_.begin(), words_.end(), std::back_inserter(words),
               [&](const Word& word) { return word.place == place; });
  return words;
}

bool MovedArguments::is_known(std::size_t place, std::uint64_t address) const {
  const Known& known = known_[place];
  return known.proofs >= kProofs && (known.alignments & alignment_bit(address)) != 0;
}

bool MovedArguments::wants_to_learn(std::span<const Place> places) const {
  if (failures_ >= kFailures || places.size() != places_.size() || any_overlap(places)) return false;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] != places_[i] && (i >= known_.size() || !is_known(i, places[i].address))) return true;
  }
  return false;
}

bool MovedArguments::follow(std::span<NodeChange> changes, std::span<const Place> places) {
  if (std::equal(places.begin(), places.end(), places_.begin(), places_.end())) return true;
  if (known_.size() != places.size() || !is_same_memory(places_, places)) return false;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].address != places_[i].address && !is_known(i, places[i].address)) return false;
  }
  for (const Word& word : words_) {
    NodeChange& change = changes[word.node];
    change.set_word(word.index, change.word(word.index) + (places[word.place].address - places_[word.place].address));
  }
  note(places);
  return true;
}

}  // namespace pianola
