#include <pianola/callable/warm_up.hpp>

#include <pianola/callable/checked_reads.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace pianola::callable {
namespace {

// Seeds that may come while a step warms up: each makes recurrent dropout begin anew, in one call that is like no other.
constexpr int kMostBegins = 3;
constexpr int kMostCompiled = 8;  // calls that torch.compile makes code in: as many versions of a function it keeps
constexpr int kMostLate = 2;      // a rank that is late in each call waits for this one, rather

// Calls with different numbers that show what becomes of them; and how many more calls are made until there are enough.
constexpr std::size_t kSamples = 3;
constexpr int kMostForSamples = 6;

// Calls of an accumulation's last step, whose other steps may not have been captured yet.
constexpr int kMostForGradients = 12;

// Calls that are made before the backward pass of the first ones: microbatches in flight, uses of one module in another.
constexpr int kMostForBackward = 32;
constexpr int kMostFinds = 8;  // gradients that call after call has others, or none

// The reducer of DistributedDataParallel times its first 10 iterations with events of CUDA, which no capture can hold.
constexpr int kDataParallelOnCuda = 11;

}  // namespace

void WarmUp::note(Observation observed, Call& call) {
  if (observed.is_unlike_captures() && observed.lasting().empty()) return;
  if (observed.compiled() && ++compiled_ <= kMostCompiled) return;
  if (observed.waited_for_a_rank() && ++late_ <= kMostLate) return;
  if (observed.has_inputs_elsewhere() && call.note_inputs_elsewhere()) return;
  ++calls_;
  if (!obstacle_.empty()) return;
  if (observed.begins_anew() && observed.lasting().empty()) return start_again();
  const bool is_first = !last_ || (observed.dropout().began_anew() && ++begins_ <= kMostBegins);
  settled_ = true;
  obstacle_ = observed.lasting();
  if (!obstacle_.empty()) call.note_lasting_obstacle();
  if (obstacle_.empty() && counts()) note_obstacle(observed, is_first);
  const std::vector<c10::IValue> numbers = call.numbers();
  if (compare_reads(observed, is_first)) return start_again();
  if (obstacle_.empty() && !is_first && calls_ >= wanted_) {
    // A backward pass from outside has operations that this log does not know.
    const bool numbers_count = same_values(numbers, numbers_) || observed.kind() == GraphedKind::autograd;
    std::string difference = observed.difference_from(*last_, numbers_count);
    if (last_is_first_) {
      settled_ = settled_ && difference.empty();
    } else if (!difference.empty() && call.tell_numbers_apart(difference, /*in_capture=*/false)) {
      return start_again();
    } else {
      obstacle_ = std::move(difference);
    }
  }
  note_sample(observed, numbers);
  if (last_) observed.note_varying_parts(*last_);
  backwards_ = last_ && !last_is_first_ ? last_->backwards() : CustomBackwards();
  if (observed.kind() == GraphedKind::autograd) seen_.push_back(observed.backward());
  gradients_.note(observed.gradients());
  last_ = std::move(observed);
  last_is_first_ = is_first;
  last_was_captured_ = false;
  KeptTensors kept = last_->take_kept();
  look_at_inputs(kept, call, is_first);
  if (!counts()) return;
  kept_.push_back({.tensors = std::move(kept), .is_first = is_first});
  look_at_kept(call);
}

// At once: later the caller's own code may keep them.
void WarmUp::look_at_inputs(KeptTensors& kept, Call& call, bool is_first) {
  kept.inputs().go_on_from(inputs_before_);
  if (kept.kept_input() && counts()) {
    kept.wait_for_threads();
    call.collect_garbage();
    const std::optional<std::size_t> input = kept.kept_input();
    if (input && is_first) settled_ = false;
    if (input && !is_first && obstacle_.empty()) {
      obstacle_ = UsageError(KeptTensors::refuse_kept_input(*input)).what();
    }
  }
  inputs_before_ = kept.take_kept_inputs();
}

// Two calls have to agree on what replays are to check. @return  Whether they did not, so that nothing is to be checked.
bool WarmUp::compare_reads(const Observation& observed, bool is_first) {
  const bool agree = !is_first && same_values(observed.checked_values(), last_->checked_values());
  reads_vary_ = !is_first && !agree && !last_is_first_;
  if (!agree && !reads_vary_ && !observed.checked_values().empty()) settled_ = false;
  return reads_vary_;
}

void WarmUp::note_obstacle(const Observation& observed, bool is_first) {
  const bool awaits = !observed.awaited().empty();
  if (is_first) {
    settled_ = observed.passing().empty() && !awaits;
    return;
  }
  obstacle_ = observed.passing();
  if (!obstacle_.empty() || !awaits) return;
  settled_ = false;
  if (++waited_ > kMostForGradients) obstacle_ = observed.awaited();
}

void WarmUp::note_sample(const Observation& observed, std::vector<c10::IValue> numbers) {
  if (numbers.empty()) return;
  const bool is_like_last = last_ && observed.difference_from(*last_, /*numbers_count=*/false).empty();
  if (!is_like_last) samples_.clear();
  if (is_like_last && !same_values(numbers, numbers_)) {
    given_others_ = given_others_ || !observed.difference_from(*last_).empty();
  }
  std::erase_if(samples_, [&](const graph::NumberSample& sample) { return same_values(sample.arguments, numbers); });
  if (samples_.size() > kSamples) samples_.erase(samples_.begin());
  samples_.push_back({.arguments = numbers, .given = observed.log().numbers()});
  numbers_ = std::move(numbers);
}

bool WarmUp::awaits_backward() {
  const std::vector<at::Tensor> leaves = last_->leaves();
  std::erase_if(seen_, [&](const ObservedBackward& one) {
    if (one.is_awaited()) return false;
    has_seen_ = has_seen_ || one.was_seen();
    shares_gradients_ = shares_gradients_ || one.reach(leaves);
    shares_inputs_ = shares_inputs_ || one.reach_inputs();
    if (auto strides = one.gradient_strides(); !strides.empty()) gradient_strides_ = std::move(strides);
    return true;
  });
  if (shares_gradients_ && shares_inputs_) return false;
  if (seen_.empty() && has_seen_) return false;
  if (!seen_.empty() && ++waited_for_backward_ <= kMostForBackward) return true;
  shares_gradients_ = shares_inputs_ = true;  // for all that is known
  return false;
}

void WarmUp::look_again(Call& call) {
  look_at_kept(call);
  if (!last_ || !obstacle_.empty()) return;
  if (is_over() && !last_->dropout().intact()) {
    if (++begins_ <= kMostBegins) return start_again();
    obstacle_ = graph::RecurrentDropout::difference() + " again and again, before it can be captured";
    return;
  }
  if (is_over() && !gradients_.are_as_found()) {
    if (++finds_ <= kMostFinds) return start_again();
    obstacle_ = fmt::format("{}, before it can be captured", ForwardGradients::kDifference);
    return;
  }
  if (const auto difference = last_->backwards().difference_from(backwards_))
    obstacle_ = UsageError(*difference).what();
}

void WarmUp::look_at_kept(Call& call) {
  for (auto one = kept_.begin(); one != kept_.end() && obstacle_.empty();) {
    if (one->tensors.is_open()) {
      ++one;
      continue;
    }
    one->tensors.wait_for_threads();
    if (one->tensors.any()) call.collect_garbage();
    if (const std::optional<Diagnosis> offence = one->tensors.offence()) {
      if (!one->is_first) obstacle_ = UsageError(*offence).what();
      if (last_is_first_) settled_ = false;
    }
    one = kept_.erase(one);
  }
}

void WarmUp::start_again() {
  if (last_) {
    leaves_before_.clear();
    for (const at::Tensor& leaf : last_->leaves_to_compare()) leaves_before_.emplace_back(leaf.getIntrusivePtr());
  }
  last_.reset();
  kept_.clear();
  obstacle_.clear();
}

GradientsBefore WarmUp::gradients_before() const {
  std::vector<at::Tensor> leaves = gradients_.leaves();
  if (last_) {
    const std::vector<at::Tensor> more = last_->leaves_to_compare();
    leaves.insert(leaves.end(), more.begin(), more.end());
  } else {
    for (const trace::WeakTensor& weak : leaves_before_) {
      if (auto leaf = weak.lock()) leaves.emplace_back(std::move(leaf));
    }
  }
  return GradientsBefore(leaves);
}

bool WarmUp::note_other_path() {
  if (std::exchange(last_was_captured_, false)) {
    start_again();
    return true;
  }
  if (!last_is_first_) return false;
  settled_ = false;
  return true;
}

void WarmUp::adopt(const WarmUp& other) {
  const int wanted = wanted_;
  *this = other;
  wanted_ = wanted;
  calls_ = wanted;
  settled_ = true;
}

bool WarmUp::is_over() const {
  if (!last_ || calls_ < wanted_ || !settled_) return false;
  if (last_->is_data_parallel() && !last_->device().is_cpu() && calls_ < kDataParallelOnCuda) return false;
  return !given_others_ || samples_.size() >= kSamples || calls_ >= wanted_ + kMostForSamples;
}

void WarmUp::forget_places() {
  last_->forget_places();
  last_was_captured_ = true;
  kept_.clear();
  begins_ = finds_ = 0;
}

}  // namespace pianola::callable
