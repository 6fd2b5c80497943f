#pragma once
#include <pianola/cuda/moved_arguments.hpp>
#include <pianola/cuda/node_change.hpp>
#include <pianola/cuda/number_words.hpp>

#include <optional>
#include <span>
#include <vector>

namespace pianola {

/// Where the tensors of an operation lie, and what its numbers are.
struct CallArguments {
  std::vector<Place> places = {};
  std::vector<Numeral> numbers = {};
};

/// What the nodes of an operation are given, and what is known to follow its arguments, for calls whose tensors are aligned
/// alike: alignment chooses kernels.
class FollowedCall {
 public:
  /// @param arguments  Of the first capture.
  explicit FollowedCall(const CallArguments& arguments) : arguments_(arguments), varies_(arguments.numbers.size()) {}

  /// Whether calls with these arguments are its own.
  [[nodiscard]] bool is_for(const CallArguments& arguments) const;

  /// Makes changes() those of the arguments. @return  False: it has to be captured to know.
  [[nodiscard]] bool follow(const CallArguments& arguments);
  /// Whether a second capture with the same arguments would show which words follow them.
  [[nodiscard]] bool wants_again(const CallArguments& arguments) const;
  /// It was captured.
  /// @param again  The same, of a second capture; empty without one.
  void take(std::vector<NodeChange> changes, std::span<const NodeChange> again, const CallArguments& arguments);

  /// Whether trial captures would show which words follow the numbers.
  [[nodiscard]] bool wants_trials() const;
  /// Numbers for one of them.
  [[nodiscard]] std::vector<Numeral> trial(unsigned round) const {
    return NumberWords::trial(arguments_.numbers, varies_, round);
  }
  /// Trials are made now, which may show nothing.
  void note_trials() noexcept { ++trials_; }
  /// See NumberWords::find().
  void learn(std::vector<NumberWords::Capture> trials, std::span<const NodeChange> again);

  [[nodiscard]] std::span<NodeChange> changes() noexcept { return changes_; }

 private:
  std::vector<NodeChange> changes_;
  CallArguments arguments_;  // that they are of
  MovedArguments moved_;
  std::vector<bool> varies_;  // numbers that have had another value
  std::optional<NumberWords> words_;
  bool are_words_valid_ = false;  // for `changes_`
  unsigned trials_ = 0;
};

}  // namespace pianola
