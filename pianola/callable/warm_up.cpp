#include <pianola/callable/warm_up.hpp>

#include <utility>

namespace pianola::callable {
namespace {

// Seeds that may come while a step warms up: each makes recurrent dropout begin anew, in one call that is like no other.
constexpr int kMostBegins = 3;

}  // namespace

void WarmUp::note(Observation observed, Call& call) {
  ++calls_;
  if (!obstacle_.empty()) return;
  const bool is_first = !last_ || (observed.dropout().began_anew() && ++begins_ <= kMostBegins);
  settled_ = true;
  obstacle_ = observed.lasting();
  if (!obstacle_.empty()) call.note_lasting_obstacle();
  if (obstacle_.empty() && counts()) {
    if (is_first) {
      settled_ = observed.passing().empty();
    } else {
      obstacle_ = observed.passing();
    }
  }
  if (obstacle_.empty() && !is_first && calls_ >= wanted_) {
    std::string difference = observed.difference_from(*last_);
    if (last_is_first_) {
      settled_ = difference.empty();
    } else {
      obstacle_ = std::move(difference);
    }
  }
  backwards_ = last_ && !last_is_first_ ? last_->backwards() : CustomBackwards();
  last_ = std::move(observed);
  last_is_first_ = is_first;
  if (!counts()) return;
  kept_.push_back({.tensors = last_->take_kept(), .is_first = is_first});
  look_at_kept(call);
}

void WarmUp::look_again(Call& call) {
  look_at_kept(call);
  if (!last_ || !obstacle_.empty()) return;
  if (is_over() && !last_->dropout().intact()) {
    if (++begins_ <= kMostBegins) return start_again();
    obstacle_ = graph::RecurrentDropout::difference() + " again and again, before it can be captured";
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
    one->tensors.wait_for_autograd();
    if (one->tensors.any()) call.collect_garbage();
    if (const std::optional<Diagnosis> offence = one->tensors.offence()) {
      if (!one->is_first) obstacle_ = UsageError(*offence).what();
      if (last_is_first_) settled_ = false;
    }
    one = kept_.erase(one);
  }
}

void WarmUp::start_again() {
  last_.reset();
  kept_.clear();
  obstacle_.clear();
}

bool WarmUp::note_other_path() {
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

bool WarmUp::is_over() const { return last_ && calls_ >= wanted_ && settled_; }

void WarmUp::forget_places() {
  last_->forget_places();
  kept_.clear();
  begins_ = 0;
}

}  // namespace pianola::callable
