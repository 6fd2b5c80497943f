#include <pianola/profile/analyse/issued.hpp>

#include <algorithm>

namespace pianola::profiling {
namespace {

struct Correlated {
  std::uint64_t correlation;
  std::uint32_t call;
};

// By correlation, of one correlation the call that began first.
std::vector<Correlated> correlated_calls(const Timeline& timeline, std::int32_t process) {
  std::vector<Correlated> calls;
  for (std::size_t i = 0; i < timeline.calls.size(); ++i) {
    const HostCall& call = timeline.calls[i];
    if (call.process != process || call.correlation == 0) continue;
    calls.push_back({call.correlation, static_cast<std::uint32_t>(i)});
  }
  const auto by_correlation = [](const Correlated& a, const Correlated& b) { return a.correlation < b.correlation; };
  if (!std::ranges::is_sorted(calls, by_correlation)) std::ranges::stable_sort(calls, by_correlation);
  return calls;
}

// Looks first where the last one was found: devices work in about the order of the calls.
class Lookup {
 public:
  explicit Lookup(const std::vector<Correlated>& calls) : calls_(calls) {}

  std::uint32_t operator()(std::uint64_t correlation) {
    if (correlation == 0) return Issued::kNone;
    for (std::size_t near = last_; near < std::min(last_ + 4, calls_.size()); ++near) {
      const bool is_first = near == 0 || calls_[near - 1].correlation != correlation;
      if (calls_[near].correlation == correlation && is_first) return found(near);
    }
    const auto at = std::ranges::lower_bound(calls_, correlation, {}, &Correlated::correlation);
    if (at == calls_.end() || at->correlation != correlation) return Issued::kNone;
    return found(static_cast<std::size_t>(at - calls_.begin()));
  }

 private:
  std::uint32_t found(std::size_t at) {
    last_ = at;
    return calls_[at].call;
  }

  const std::vector<Correlated>& calls_;
  std::size_t last_ = 0;
};

}  // namespace

Issued::Issued(const DeviceWorkList& list)
    : calls_(&list.timeline->calls), call_of_(list.size(), kNone), first_work_of_(list.timeline->calls.size(), kNone) {
  const std::vector<Correlated> calls = correlated_calls(*list.timeline, list.process);
  for (std::size_t i = 1; i < calls.size(); ++i) {
    if (calls[i].correlation == calls[i - 1].correlation) first_work_of_[calls[i].call] = kInner;
  }
  Lookup lookup(calls);
  std::size_t known = 0;
  for (std::size_t position = 0; position < list.size(); ++position) {
    const std::uint32_t call = lookup(list[position].correlation);
    call_of_[position] = call;
    if (call == kNone) continue;
    ++known;
    if (first_work_of_[call] == kNone) first_work_of_[call] = static_cast<std::uint32_t>(position);
  }
  for (const DeviceWork& work : list.timeline->work) {
    if (work.process != list.process || work.device == list.device) continue;
    const std::uint32_t call = lookup(work.correlation);
    if (call != kNone && first_work_of_[call] == kNone) first_work_of_[call] = kElsewhere;
  }
  share_known_ = list.size() == 0 ? 0 : static_cast<double>(known) / static_cast<double>(list.size());
}

}  // namespace pianola::profiling
