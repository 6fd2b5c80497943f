#include <pianola/cuda/followed_call.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace pianola {
namespace {

constexpr unsigned kMostTrials = 4;

bool do_the_same(std::span<const NodeChange> one, std::span<const NodeChange> other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const NodeChange& a, const NodeChange& b) { return a.does_as(b); });
}

}  // namespace

bool FollowedCall::is_for(const CallArguments& arguments) const {
  return arguments.numbers.size() == arguments_.numbers.size() &&
         std::equal(arguments.places.begin(), arguments.places.end(), arguments_.places.begin(),
                    arguments_.places.end(), [](const Place& a, const Place& b) { return a.is_aligned_as(b); });
}

bool FollowedCall::follow(const CallArguments& arguments) {
  if (changes_.empty()) return false;
  if (arguments.numbers != arguments_.numbers) {
    if (!are_words_valid_ || !words_->follow(changes_, arguments.numbers)) return false;
    arguments_.numbers = arguments.numbers;
  }
  return moved_.follow(changes_, arguments.places);
}

bool FollowedCall::wants_again(const CallArguments& arguments) const {
  const bool knows_numbers = are_words_valid_ || arguments.numbers == arguments_.numbers;
  return !changes_.empty() && knows_numbers && moved_.wants_to_learn(arguments.places);
}

void FollowedCall::take(std::vector<NodeChange> changes, std::span<const NodeChange> again,
                        const CallArguments& arguments) {
  bool are_same_numbers = true;
  for (std::size_t i = 0; i < varies_.size(); ++i) {
    if (arguments.numbers[i] == arguments_.numbers[i]) continue;
    varies_[i] = true;
    are_same_numbers = false;
  }
  const bool had_words = std::exchange(are_words_valid_, words_ && words_->fits(changes, arguments.numbers));
  const bool can_compare = are_same_numbers || (had_words && are_words_valid_);
  if (!again.empty() && can_compare) {
    moved_.learn(changes_, changes, again, arguments.places, are_same_numbers ? nullptr : &*words_);
  } else {
    if (!do_the_same(changes_, changes)) moved_.forget();
    moved_.note(arguments.places);
  }
  changes_ = std::move(changes);
  arguments_ = arguments;
}

bool FollowedCall::wants_trials() const {
  if (are_words_valid_ || trials_ >= kMostTrials) return false;
  bool any = false;
  for (std::size_t i = 0; i < varies_.size(); ++i) {
    if (varies_[i] && !is_ordinary(arguments_.numbers[i])) return false;
    any = any || varies_[i];
  }
  return any;
}

void FollowedCall::learn(std::vector<NumberWords::Capture> trials, std::span<const NodeChange> again) {
  words_ = NumberWords::find(std::move(trials), again, varies_);
  are_words_valid_ = words_ && words_->fits(changes_, arguments_.numbers);
}

}  // namespace pianola
