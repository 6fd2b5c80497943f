#include <pianola/callable/signature_entry.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace pianola::callable {
namespace {

// Beyond that a signature changes as fast as it is captured.
constexpr std::size_t kMostRecaptures = 8;

}  // namespace

SignatureEntry::SignatureEntry(CallSignature signature, const GraphedOptions& options)
    : signature_(std::move(signature)), options_(options) {
  if (signature_.obstacle()) stay_eager(Error(*signature_.obstacle()).what());
}

BankGraph* SignatureEntry::graph_for(std::span<const at::Tensor> inputs, BankCall& call, GraphMaker& maker) {
  drop_stale();
  for (BankGraph& graph : graphs_) {
    if (graph.call->is_free()) return &graph;
  }
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
  observation_.reset();
  if (++recaptures_ > kMostRecaptures) {
    stay_eager(fmt::format("it was captured {} times, and is stale again: {}", recaptures_, why));
  }
}

// A step has no calls in flight: where none of its graphs is free, gradients are in a state that none of them was
// captured in, and the oldest makes room.
bool SignatureEntry::may_capture() {
  if (!is_warm() || reason_) return false;
  if (graphs_.size() < static_cast<std::size_t>(options_.max_in_flight)) return true;
  if (observation_->kind() != GraphedKind::step) return false;
  if (++recaptures_ > kMostRecaptures) {
    stay_eager(
        fmt::format("it was captured {} times, and gradients are again in another state: set or kept from outside",
                    recaptures_ + graphs_.size() - 1));
    return false;
  }
  graphs_.erase(graphs_.begin());
  return true;
}

BankGraph* SignatureEntry::capture(std::span<const at::Tensor> inputs, BankCall& call, GraphMaker& maker) {
  try {
    return &graphs_.emplace_back(maker.make(call, inputs, *observation_));
  } catch (const std::exception& error) {
    stay_eager(error.what());
  } catch (...) {
    stay_eager("the function threw something that is no std::exception, only while it was captured");
  }
  return nullptr;
}

void SignatureEntry::stay_eager(std::string reason) {
  reason_ = std::move(reason);
  graphs_.clear();
  observation_.reset();
}

bool SignatureEntry::wants_observation() const noexcept {
  return !reason_ && !is_warm() && warmup_calls_ + 2 >= options_.warmup;
}

void SignatureEntry::note_eager_call(std::optional<Observation> observed) {
  ++eager_calls_;
  if (reason_ || is_warm()) return;
  ++warmup_calls_;
  if (!observed) return;
  if (observation_) observed->compare(*observation_);
  observation_ = std::move(observed);
  if (!observation_->obstacle().empty()) stay_eager(observation_->obstacle());
}

bool SignatureEntry::is_warm() const noexcept { return observation_.has_value() && warmup_calls_ >= options_.warmup; }

std::optional<std::string> SignatureEntry::take_reason() {
  if (!reason_ || std::exchange(reported_, true)) return std::nullopt;
  return fmt::format("calls with {} stay eager: {}", signature_.text(), *reason_);
}

SignatureInfo SignatureEntry::info() const {
  return {.signature = signature_.text(),
          .kind = is_warm() ? observation_->kind() : GraphedKind::undecided,
          .state = reason_           ? GraphedState::eager
                   : graphs_.empty() ? GraphedState::warming_up
                                     : GraphedState::captured,
          .warmup_calls = warmup_calls_,
          .graphs = graphs_.size(),
          .recaptures = recaptures_,
          .replays = replays_,
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
