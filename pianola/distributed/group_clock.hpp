#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pianola::distributed {

// Note [How far a group has come]
// A process group of NCCL counts a collective when it is called: while it is captured, when nothing runs, and not when it is replayed.
// So what it counts says nothing of how many have run. Here captures are taken off, and replays added.

/// How many collectives of each group have run, less what its backend counts; by name.
class GroupClock {
 public:
  using Counter = std::shared_ptr<std::atomic<std::int64_t>>;

  static GroupClock& of_this_process();
  /// Lives as long as somebody holds it.
  [[nodiscard]] Counter counter(std::string_view group);
  /// The group ends; another one of its name begins anew.
  void forget(std::string_view group);

 private:
  std::mutex mutex_;
  std::map<std::string, Counter, std::less<>> counters_;
};

/// The collectives of a graph, which each replay runs.
class RunByReplays {
 public:
  void add(GroupClock::Counter counter, std::int64_t collectives) {
    counts_.emplace_back(std::move(counter), collectives);
  }
  /// A replay was launched.
  void count() const noexcept {
    for (const auto& [counter, collectives] : counts_) counter->fetch_add(collectives, std::memory_order_relaxed);
  }

 private:
  std::vector<std::pair<GroupClock::Counter, std::int64_t>> counts_;
};

}  // namespace pianola::distributed
