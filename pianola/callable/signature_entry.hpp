#pragma once
#include <pianola/callable/call_signature.hpp>
#include <pianola/callable/graph_bank.hpp>
#include <pianola/callable/graph_maker.hpp>
#include <pianola/callable/graphed_info.hpp>
#include <pianola/callable/recaptures.hpp>
#include <pianola/callable/warm_up.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::callable {

/// The life of one signature: warm-up calls, which are observed; then graphs; or eager calls for good.
class SignatureEntry {
 public:
  SignatureEntry(CallSignature signature, const GraphedOptions& options);

  [[nodiscard]] const CallSignature& signature() const noexcept { return signature_; }

  /// The graph that can replay the call now; made where that is due. nullptr: the call is to run eagerly.
  [[nodiscard]] BankGraph* graph_for(std::span<const at::Tensor> inputs, BankCall& call, GraphMaker& maker);
  /// After a replay.
  void note_replay() noexcept { recaptures_.note_replay(); }
  /// A replay was refused, and what it reads was replaced: drops the graphs and looks again at what the function does.
  void note_stale(const std::string& why);

  /// Whether the next eager call is to be observed.
  [[nodiscard]] bool wants_observation() const { return !reason_ && !warm_up_.is_over(); }
  /// After an eager call; with what was observed in it.
  void note_eager_call(std::optional<Observation> observed, BankCall& call);

  /// From now on its calls stay eager.
  void refuse(std::string reason) { stay_eager(std::move(reason)); }

  [[nodiscard]] bool holds_graphs() const noexcept { return !graphs_.empty(); }
  /// Why it stays eager, the first time that it is asked since that is so; nothing otherwise.
  [[nodiscard]] std::optional<std::string> take_reason();
  /// What else the caller should know of his calls, once.
  [[nodiscard]] std::optional<std::string> take_note() { return std::exchange(note_, std::nullopt); }
  [[nodiscard]] SignatureInfo info() const;

 private:
  [[nodiscard]] bool may_capture();
  void drop_stale();
  void stay_eager(std::string reason);
  [[nodiscard]] std::vector<BranchInfo> branches() const;
  void note_in_flight();
  BankGraph* capture(std::span<const at::Tensor> inputs, BankCall& call, GraphMaker& maker);

  CallSignature signature_;
  const GraphedOptions& options_;
  WarmUp warm_up_;
  std::vector<BankGraph> graphs_;
  std::optional<std::string> reason_;  // empty while it may be captured
  bool reported_ = false;
  std::optional<std::string> note_;
  bool noted_ = false;
  Recaptures recaptures_;
  std::size_t eager_calls_ = 0;
};

}  // namespace pianola::callable
