#pragma once
#include <pianola/trace/op_stream.hpp>
#include <pianola/verify/compare.hpp>
#include <pianola/verify/state.hpp>
#include <pianola/verify/verify.hpp>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

namespace pianola::verification {

/// What a step left, besides the state.
struct Outcome {
  std::vector<at::Tensor> results = {};
  std::vector<at::Tensor> inputs = {};  ///< The copies that it was called with, as it left them.
  std::vector<at::Tensor> input_gradients = {};
};

/// What eager left behind one step, in copies.
struct StepRecord {
  Outcome outcome = {};
  StateCopy state = {};
  std::vector<at::Tensor> gradients = {};  ///< Of the listed leaves: copies that `state` holds as well.
};

/// Something of the user's threw: "eager threw in step 2: out of memory".
class StepError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Calls the two sides and what is between their steps, and keeps the state informed of what they write.
class Runner {
 public:
  Runner(const VerifyStep& eager, const VerifyStep& graphed, const VerifyOptions& options, State& state, Copies& copies)
      : eager_(eager), graphed_(graphed), options_(options), state_(state), copies_(copies) {}

  /// Everything as the side's first step is to find it, on the host as well.
  void rewind(Side side);
  /// @param step      From 1.
  /// @param watching  Who else sees the operations. @throws StepError
  Outcome run(Side side, int step, const std::vector<trace::OpObserver*>& watching = {});
  /// The callback, where there is one and a step follows. @throws StepError
  void between(int step);

  /// The step alone, with these inputs, for a capture.
  std::vector<at::Tensor> call(Side side, const std::vector<at::Tensor>& inputs) const {
    return side == Side::eager ? eager_(inputs) : graphed_(inputs);
  }
  /// Copies of the inputs of a step, which nobody else writes.
  [[nodiscard]] std::vector<at::Tensor> hand_out(int step) const;

  [[nodiscard]] StepRecord record(const Outcome& outcome, const StepRecord* earlier) const;
  /// What a step has left now, beside what eager's left.
  [[nodiscard]] std::vector<Pair> pairs(const StepRecord& eager, const Outcome& now) const;

  [[nodiscard]] const VerifyOptions& options() const noexcept { return options_; }
  [[nodiscard]] State& state() const noexcept { return state_; }
  [[nodiscard]] std::chrono::microseconds time() const noexcept { return time_; }  ///< Of the last run.
  /// Found in eager's runs so far.
  [[nodiscard]] const std::vector<MissingState>& missing() const noexcept { return missing_; }
  [[nodiscard]] const std::vector<std::string>& unlisted_draws() const noexcept { return draws_; }

 private:
  const VerifyStep& eager_;
  const VerifyStep& graphed_;
  const VerifyOptions& options_;
  State& state_;
  Copies& copies_;
  std::chrono::microseconds time_{};
  std::vector<MissingState> missing_;
  std::vector<std::string> draws_;
};

}  // namespace pianola::verification
