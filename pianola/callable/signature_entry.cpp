#include <pianola/callable/signature_entry.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace pianola::callable {

SignatureEntry::SignatureEntry(CallSignature signature, const GraphedOptions& options)
    : signature_(std::move(signature)), options_(options), warm_up_(options.warmup) {
  if (signature_.obstacle()) stay_eager(Error(*signature_.obstacle()).what());
}

BankGraph* SignatureEntry::graph_for(std::span<const at::Tensor> inputs, BankCall& call, GraphMaker& maker) {
  drop_stale();
  for (BankGraph& graph : graphs_) {
    if (graph.call->is_free()) return &graph;
  }
  if (reason_) return nullptr;
  warm_up_.look_again(call);
  if (!warm_up_.obstacle().empty()) stay_eager(warm_up_.obstacle());
  return may_capture() ? capture(inputs, call, maker) : nullptr;
}

void SignatureEntry::drop_stale() {
  const auto stale =
      std::find_if(graphs_.begin(), graphs_.end(), [](const BankGraph& graph) { return graph.call->is_stale(); });
  if (stale != graphs_.end()) [[unlikely]]
    note_stale(stale->call->why_stale());
}

// All of a signature's graphs read the same things: where one is stale, so are the others. And what the function does
// may have changed with them, so that the last warm-up call has to be made again.
void SignatureEntry::note_stale(const std::string& why) {
  graphs_.clear();
  warm_up_.start_again();
  if (recaptures_.note()) return;
  stay_eager(fmt::format("it was captured {} times in a row, and is stale again: {}", recaptures_.in_a_row(), why));
}

// A step has no calls in flight: where none of its graphs is free, gradients are in a state that none of them was
// captured in, and the oldest makes room.
bool SignatureEntry::may_capture() {
  if (!warm_up_.is_over() || reason_) return false;
  if (graphs_.size() < static_cast<std::size_t>(options_.max_in_flight)) return true;
  if (warm_up_.last().kind() != GraphedKind::step) {
    note_in_flight();
    return false;
  }
  if (!recaptures_.note()) {
    stay_eager(fmt::format(
        "it was captured {} times in a row, and gradients are again in another state: set or kept from outside",
        recaptures_.in_a_row() + graphs_.size() - 1));
    return false;
  }
  graphs_.erase(graphs_.begin());
  return true;
}

void SignatureEntry::note_in_flight() {
  if (std::exchange(noted_, true)) return;
  note_ = fmt::format(
      "{} calls with {} wait for their backward pass, and further ones run eagerly: raise max_in_flight to the most "
      "that "
      "wait at once, or let go of results that need no backward pass",
      graphs_.size(), signature_.text());
}

BankGraph* SignatureEntry::capture(std::span<const at::Tensor> inputs, BankCall& call, GraphMaker& maker) {
  std::string reason;
  try {
    BankGraph& graph = graphs_.emplace_back(maker.make(call, inputs, warm_up_.last()));
    warm_up_.forget_places();
    return &graph;
  } catch (const OtherPath& error) {
    if (warm_up_.note_other_path()) return nullptr;
    reason = error.what();
  } catch (const std::exception& error) {
    reason = error.what();
  } catch (...) {
    reason = "the function threw something that is no std::exception, only while it was captured";
  }
  stay_eager(reason + maker.note_of_second_run());
  return nullptr;
}

void SignatureEntry::stay_eager(std::string reason) {
  reason_ = std::move(reason);
  graphs_.clear();
  warm_up_.start_again();
}

void SignatureEntry::note_eager_call(std::optional<Observation> observed, BankCall& call) {
  ++eager_calls_;
  if (!observed || !wants_observation()) return;  // another thread's call may have been the last one that was wanted
  warm_up_.note(*std::move(observed), call);
  if (!warm_up_.obstacle().empty()) stay_eager(warm_up_.obstacle());
}

std::optional<std::string> SignatureEntry::take_reason() {
  if (!reason_ || std::exchange(reported_, true)) return std::nullopt;
  return fmt::format("calls with {} stay eager: {}", signature_.text(), *reason_);
}

SignatureInfo SignatureEntry::info() const {
  return {.signature = signature_.text(),
          .kind = warm_up_.is_over() ? warm_up_.last().kind() : GraphedKind::undecided,
          .state = reason_           ? GraphedState::eager
                   : graphs_.empty() ? GraphedState::warming_up
                                     : GraphedState::captured,
          .warmup_calls = warm_up_.calls(),
          .graphs = graphs_.size(),
          .recaptures = recaptures_.count(),
          .replays = recaptures_.replays(),
          .eager_calls = eager_calls_,
          .reason = reason_.value_or(""),
          .branches = branches()};
}

std::vector<BranchInfo> SignatureEntry::branches() const {
  std::vector<BranchInfo> result;
  if (options_.branches == 0) return result;
  for (const BankGraph& graph : graphs_) {
    const std::vector<BranchInfo> more = graph.call->branches();
    result.insert(result.end(), more.begin(), more.end());
  }
  return result;
}

}  // namespace pianola::callable
