#include <pianola/trace/numeric_region.hpp>

#include <algorithm>
#include <mutex>
#include <utility>

namespace pianola::trace {
namespace {

thread_local NumericRegion* innermost = nullptr;
thread_local RegionUses* collecting = nullptr;

// Words by number, from 1.
class Words {
 public:
  static Words& instance() {
    static Words& all = *new Words;  // never destroyed: a thread may end later
    return all;
  }
  std::uint64_t number_of(const std::string& words) {
    const std::lock_guard lock(mutex_);
    const auto known = std::find(all_.begin(), all_.end(), words);
    if (known != all_.end()) return static_cast<std::uint64_t>(known - all_.begin()) + 1;
    all_.push_back(words);
    return all_.size();
  }
  std::string of(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    return number == 0 || number > all_.size() ? "none" : all_[number - 1];
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> all_;
};

}  // namespace

NumericRegion::NumericRegion(const std::string& words)
    : outer_(innermost), number_(words.empty() ? 0 : Words::instance().number_of(words)) {
  innermost = this;
}

NumericRegion::~NumericRegion() { leave(); }

void NumericRegion::leave() noexcept {
  if (!std::exchange(is_open_, false)) return;
  NumericRegion** place = &innermost;
  while (*place != nullptr && *place != this) place = &(*place)->outer_;
  if (*place == this) *place = outer_;
}

NumericRegion* NumericRegion::current() noexcept { return innermost; }
std::uint64_t NumericRegion::current_number() noexcept { return innermost == nullptr ? 0 : innermost->number_; }
std::string NumericRegion::words_of(std::uint64_t number) { return Words::instance().of(number); }

void NumericRegion::ran(const std::shared_ptr<const void>& what) {
  NumericRegion* outermost = this;
  bool was_open = false, is_before = false;  // the recording
  for (NumericRegion* one = this; one != nullptr; one = one->outer_) {
    is_before = is_before || (collecting != nullptr && one == collecting->inside_);
    if (one->number_ == 0) continue;  // it is as if it were not there
    outermost = one;
    was_open = was_open || is_before;
  }
  if (was_open) {
    collecting->any_ran_ = true;
    auto& uses = collecting->uses_;
    if (what != nullptr && std::find(uses.begin(), uses.end(), what) == uses.end()) uses.push_back(what);
    return;
  }
  if (what != nullptr) outermost->hear(what);
}

RegionUses::RegionUses() : outer_(std::exchange(collecting, this)), inside_(innermost) {}
RegionUses::~RegionUses() { collecting = outer_; }

}  // namespace pianola::trace
