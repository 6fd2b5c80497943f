#include <pianola/memory/same_place.hpp>

#include <algorithm>
#include <cstdlib>

namespace pianola::memory {
namespace {

constexpr std::size_t kNear = 64;         // operations around, and as many more as it has been lost for
constexpr std::size_t kMostTrails = 256;  // at once

}  // namespace

void SamePlace::advance(const void* operation) {
  std::erase_if(trails_, [&](const Trail& trail) {
    const auto next = static_cast<std::size_t>(trail.at + 1);
    return next >= operations_.size() || operations_[next] != operation;
  });
  for (Trail& trail : trails_) {
    ++trail.at;
    ++trail.steps;
  }
  const bool any_trusted = std::ranges::any_of(trails_, [](const Trail& trail) { return trail.steps >= kTrusted; });
  if (!any_trusted) look_around(operation);
  choose();
}

void SamePlace::look_around(const void* operation) {
  ++lost_for_;
  const auto near = static_cast<std::int64_t>(kNear + lost_for_);
  const std::int64_t begin = std::max<std::int64_t>(0, last_known_ + 1 - near);
  const std::int64_t end = std::min(static_cast<std::int64_t>(operations_.size()), last_known_ + 1 + near);
  for (std::int64_t at = begin; at < end && trails_.size() < kMostTrails; ++at) {
    const bool is_followed = std::ranges::any_of(trails_, [at](const Trail& trail) { return trail.at == at; });
    if (operations_[static_cast<std::size_t>(at)] == operation && !is_followed)
      trails_.push_back({.at = at, .steps = 1});
  }
}

// The one that has led on the longest; one step is enough where nothing else looks like it. Layers repeat themselves, so that trails a
// layer apart lead on alike: then it is the one that is nearest to where as many operations lead.
void SamePlace::choose() {
  now_ = kUnknown;
  if (trails_.empty()) return;
  const std::int64_t expected = last_known_ + static_cast<std::int64_t>(lost_for_);
  const auto best = std::ranges::max_element(trails_, [&](const Trail& one, const Trail& other) {
    if (one.steps != other.steps) return one.steps < other.steps;
    return std::abs(one.at - expected) > std::abs(other.at - expected);
  });
  if (best->steps == 1 && trails_.size() > 1) return;
  now_ = best->at;
  if (best->steps < kTrusted) return;
  last_known_ = best->at;
  lost_for_ = 0;
  trails_ = {*best};
}

}  // namespace pianola::memory
