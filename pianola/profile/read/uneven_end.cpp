#include <pianola/profile/read/uneven_end.hpp>

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>

namespace pianola::profiling {
namespace {

constexpr std::size_t kFewOf = 20;            // A thread with less than one of so many calls does not count.
constexpr std::size_t kMostMissing = 20'000;  // Calls that may be left out: a few times what a buffer of CUPTI holds.

struct ThreadCalls {
  std::size_t count = 0;
  Nanoseconds last = 0;
};

// When the first of the threads that count has its last call; the last call of all where there are not two of them.
Nanoseconds first_silence(const Timeline& timeline, std::int32_t process, Nanoseconds& last) {
  std::unordered_map<std::int64_t, ThreadCalls> threads;
  std::size_t all = 0;
  for (const HostCall& call : timeline.calls) {
    if (call.process != process) continue;
    ThreadCalls& thread = threads[call.thread];
    thread.last = thread.count++ == 0 ? call.time.begin : std::max(thread.last, call.time.begin);
    last = all++ == 0 ? call.time.begin : std::max(last, call.time.begin);
  }
  Nanoseconds first = last;
  for (const auto& [number, thread] : threads) {
    if (kFewOf * thread.count >= all) first = std::min(first, thread.last);
  }
  return first;
}

}  // namespace

Nanoseconds leave_out_uneven_end(Timeline& timeline, std::int32_t process) {
  Nanoseconds last = 0;
  const Nanoseconds cut = first_silence(timeline, process, last);
  const auto is_late = [&](const auto& event) { return event.process == process && event.time.begin > cut; };
  if (static_cast<std::size_t>(std::ranges::count_if(timeline.calls, is_late)) > kMostMissing || cut == last) return 0;
  std::unordered_set<std::uint64_t> kept;
  for (const HostCall& call : timeline.calls) {
    if (call.process == process && !is_late(call)) kept.insert(call.correlation);
  }
  std::erase_if(timeline.calls, is_late);
  std::erase_if(timeline.ranges, is_late);
  std::erase_if(timeline.work,
                [&](const DeviceWork& work) { return is_late(work) && !kept.contains(work.correlation); });
  return last - cut;
}

}  // namespace pianola::profiling
