#pragma once
#include <pianola/callable/call.hpp>
#include <pianola/callable/observation.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pianola::callable {

// Note [What warm-up calls show]
// All of them are observed. A function may make in its first call what later ones find (an optimizer's state, a cache), and
// who asks for more warm-up calls says that it settles later. So what a function writes and reads on the host, and which
// operations it runs, counts in the last two calls only, and never in the first one: where that is one of the two, another
// call is made. What makes a graph wrong even if it happens once in a while (random numbers of the host, clocks) counts
// in each. Gradients that calls of another signature make anew lie in one place as soon as those are graphs: such a call is looked
// at again, a while. A call whose gradients overflowed, which left out a part of the step, shows nothing: it does not count at all.

/// The eager calls of one signature: whether they were enough, and what they say against a capture.
class WarmUp {
 public:
  explicit WarmUp(int calls) : wanted_(calls) {}

  /// After an eager call.
  void note(Observation observed, Call& call);
  /// Before the next one, or a capture: what the calls before have kept, and what their backward passes did, may be known
  /// only now. Where recurrent dropout begins anew, an eager call has to begin it; where gradients are there that were not, or the
  /// other way round, one has to show what it does to them.
  void look_again(Call& call);
  /// What the function does may have changed: looks again.
  void start_again();
  /// The capture differed from the last call. @return  Whether to look again: that was the first one, or it was long ago, because
  /// this was not the first capture.
  [[nodiscard]] bool note_other_path();
  /// Takes over what another one has shown, as if these calls had been made.
  void adopt(const WarmUp& other);

  /// Whether a capture may follow; where there is no obstacle.
  [[nodiscard]] bool is_over() const;
  /// Why no graph could be right; empty where one could.
  [[nodiscard]] const std::string& obstacle() const noexcept { return obstacle_; }
  /// Whether what replays are to check was another value in one call than in the next.
  [[nodiscard]] bool reads_vary() const noexcept { return reads_vary_; }
  /// Whether operations were given other numbers, where those among the arguments were others.
  [[nodiscard]] bool gives_other_numbers() const noexcept { return given_others_; }
  /// Numbers among the arguments, and what the operations were given in the latest calls, which had different ones.
  [[nodiscard]] const std::vector<graph::NumberSample>& samples() const noexcept { return samples_; }
  /// Whether parameters get gradients from elsewhere as well, or that cannot be told; see Note [Gradients that are added up].
  [[nodiscard]] bool shares_gradients() const noexcept { return shares_gradients_; }
  /// The same of inputs that the function uses several times.
  [[nodiscard]] bool shares_inputs() const noexcept { return shares_inputs_; }
  /// Of the gradients of results, in the latest backward pass that was seen.
  [[nodiscard]] const std::vector<std::vector<std::int64_t>>& gradient_strides() const noexcept {
    return gradient_strides_;
  }
  /// Before a capture whose backward pass is a graph as well. @return  Whether to wait for a call's backward pass first.
  [[nodiscard]] bool awaits_backward();
  /// The latest call; only where one was made, and no obstacle found.
  [[nodiscard]] const Observation& last() const { return *last_; }
  [[nodiscard]] bool has_last() const noexcept { return last_.has_value(); }
  [[nodiscard]] int calls() const noexcept { return calls_; }
  /// What calls do to gradients, also those before it looked again.
  [[nodiscard]] const ForwardGradients& gradients() const noexcept { return gradients_; }
  /// Before the next call: gradients of the parameters that are known.
  [[nodiscard]] GradientsBefore gradients_before() const;
  /// After a capture: frees what only messages need.
  void forget_places();

 private:
  void look_at_kept(Call& call);
  void look_at_inputs(KeptTensors& kept, Call& call, bool is_first);
  bool compare_reads(const Observation& observed, bool is_first);
  void note_obstacle(const Observation& observed, bool is_first);
  void note_sample(const Observation& observed, std::vector<c10::IValue> numbers);
  [[nodiscard]] bool counts() const noexcept { return calls_ + 1 >= wanted_; }

  int wanted_;
  int calls_ = 0;
  int waited_ = 0;    // calls, for gradients
  int compiled_ = 0;  // calls that code was compiled in
  int late_ = 0;      // calls in which another rank was late
  int begins_ = 0;    // of recurrent dropout, after the first call
  int finds_ = 0;     // calls that found other gradients than the one before, when they were due for capture
  bool settled_ = true;
  bool last_is_first_ = false;
  bool last_was_captured_ = false;  // a capture has followed it
  std::optional<Observation> last_;
  ForwardGradients gradients_;
  std::vector<trace::WeakTensor> leaves_before_;  // of the call before it looked again
  CustomBackwards backwards_;                     // of the call before the latest, if that counts
  bool shares_gradients_ = false, shares_inputs_ = false;
  std::vector<std::vector<std::int64_t>> gradient_strides_;
  bool has_seen_ = false;               // a backward pass
  int waited_for_backward_ = 0;         // calls
  std::vector<ObservedBackward> seen_;  // of all calls, until something can be said
  struct Kept {
    KeptTensors tensors;
    bool is_first;  // as the call was
  };
  std::vector<Kept> kept_;            // of the calls that count, until something can be said
  InputHolders inputs_before_;        // of the latest call
  std::vector<c10::IValue> numbers_;  // of the latest call
  std::vector<graph::NumberSample> samples_;
  bool given_others_ = false;  // operations were given other numbers, where the arguments' were others
  bool reads_vary_ = false;
  std::string obstacle_;
};

}  // namespace pianola::callable
