#pragma once
#include <pianola/callable/call.hpp>
#include <pianola/callable/call_signature.hpp>
#include <pianola/callable/graph_maker.hpp>
#include <pianola/callable/graphed_info.hpp>
#include <pianola/callable/leaf_set.hpp>
#include <pianola/callable/signature_cache.hpp>
#include <pianola/callable/warm_up.hpp>
#include <pianola/core/error.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

/// The life of one signature: warm-up calls, which are observed; then graphs; or eager calls for good.
class SignatureEntry : public std::enable_shared_from_this<SignatureEntry> {
 public:
  /// @throws UsageError  No graph can stand for such calls, and the cache is strict.
  SignatureEntry(CallSignature signature, const CacheOptions& options);

  [[nodiscard]] const CallSignature& signature() const noexcept { return signature_; }

  /// The graph that can replay the call now; made where that is due. nullptr: the call is to run eagerly.
  /// @throws what keeps the call from being captured, where the cache is strict or the user stopped it.
  [[nodiscard]] CachedGraph* graph_for(const CallInputs& inputs, Call& call, GraphMaker& maker, std::size_t function);
  /// After a replay.
  void note_replay() noexcept {
    recaptures_.note_replay();
    misses_in_a_row_ = 0;
  }
  /// A check of a read ended a replay, and all is as before the call.
  void note_other_value(const Error& error);
  /// Whether reads are to be noted in the next eager call, for replays to check.
  [[nodiscard]] bool checks_reads() const noexcept { return reads_values_ && no_checks_.empty(); }
  /// Where the next eager call computes, for all that is known.
  [[nodiscard]] c10::Device device_of(std::span<const at::Tensor> inputs) const;
  /// A replay was refused, and nothing was launched. To be called where the error is caught. @throws it, if strict.
  void note_refused_replay(const Error& error);

  /// Whether the next thing to do is to capture, or to say why that cannot be.
  [[nodiscard]] bool is_due() const;
  /// Takes over what calls of another entry of the same function have shown, so that this one need not run before it is
  /// captured.
  void adopt(const SignatureEntry& other);
  [[nodiscard]] bool is_observed() const noexcept { return warm_up_.has_last(); }
  [[nodiscard]] bool holds_graphs() const noexcept { return !graphs_.empty(); }
  /// What has left gradients of weights for later first; nullptr: nothing has.
  [[nodiscard]] std::shared_ptr<CapturedCallable> oldest_debtor() const noexcept;
  [[nodiscard]] bool stays_eager() const noexcept { return is_eager_; }

  /// Whether the next eager call is to be observed.
  [[nodiscard]] bool wants_observation() const { return !is_eager_ && !warm_up_.is_over(); }
  /// Before that.
  [[nodiscard]] GradientsBefore gradients_before() const { return warm_up_.gradients_before(); }
  /// After an eager call; with what was observed in it. @param copied  Its inputs that a graph would copy.
  void note_eager_call(std::optional<Observation> observed, std::span<const at::Tensor> copied, Call& call);
  /// Where the next call is going to be captured, with inputs in memory that others share: what they take of it.
  [[nodiscard]] std::span<const InputSize> expected_inputs() const;
  /// Of all graphs that it holds.
  [[nodiscard]] std::vector<at::Tensor> static_inputs() const;

  /// From now on.
  void stay_eager(std::string reason);
  /// Why it stays eager, the first time that it is asked since that is so; nothing otherwise.
  [[nodiscard]] std::optional<std::string> take_reason();
  /// What else the caller should know of his calls, once.
  [[nodiscard]] std::optional<std::string> take_note() { return std::exchange(note_, std::nullopt); }
  [[nodiscard]] SignatureInfo info() const;

 private:
  void drop_stale();
  void note_stale(const std::string& why);
  void note_recapture(const std::string& why);
  void look_for_reads(const Observation& observed);
  void give_up_checks(std::string why);
  void heed_obstacle();
  [[nodiscard]] bool may_capture();
  [[nodiscard]] bool has_to_wait_for_pool() const;
  [[nodiscard]] bool is_step() const;
  void note_in_flight();
  void refuse_debts() const;
  CachedGraph* capture(const CallInputs& inputs, Call& call, GraphMaker& maker, std::size_t function);
  [[nodiscard]] std::vector<BranchInfo> branches() const;
  [[nodiscard]] std::string gain() const;

  CallSignature signature_;
  const CacheOptions& options_;
  WarmUp warm_up_;
  bool is_adopted_ = false;        // the warm-up is that of another entry
  LeafSet own_gradients_;          // of these leaves they are set from outside again and again
  bool no_own_gradients_ = false;  // that was tried, and cannot be
  bool shares_scratch_ = true;     // with other graphs; until a capture has held some
  bool shares_inputs_ = true;      // in the same way
  std::vector<InputSize> input_sizes_;
  bool reads_values_ = false;  // values, which replays are to check
  std::string no_checks_;      // why they cannot; empty: they may
  bool never_checks_ = false;  // whatever is read
  std::size_t misses_ = 0;     // replays that a check ended
  std::size_t lost_ = 0;       // replays whose gain misses have cost
  int tries_ = 0;              // captures that failed where a value may have been another one
  int misses_in_a_row_ = 0;
  int ill_timed_ = 0;  // captures that met an iteration that cannot be captured
  std::vector<CachedGraph> graphs_;
  std::string reason_;  // why it stays eager, or why graphs were dropped
  std::string doubt_;   // why it would stay eager, if the eager call after the failed capture does not throw as well
  bool is_eager_ = false;
  bool is_reported_ = false;
  std::optional<std::string> note_;
  bool is_noted_ = false;
  Recaptures recaptures_;
  std::size_t eager_calls_ = 0;
};

}  // namespace pianola::callable
