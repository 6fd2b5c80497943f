#pragma once
#include <pianola/graph/process_mark.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace pianola::graph {

// Note [Replays that wait for ever]
// A replay on a GPU that communicates waits for the other ranks. Where one of them has died, or does something else, it waits for
// ever: torch watches collectives that it launches itself, and none inside of a graph. So a thread looks whether replays end within
// the time that their process group was made with. If one does not, the ranks tell each other through the group's store what they
// are doing, and each one that waits says so; then the communicators are aborted, which ends the replay, and the next one is an
// error. Where the process hangs all the same, it is ended. TORCH_NCCL_ASYNC_ERROR_HANDLING=0, by which torch's own watch only
// looks on, does so here, too.

/// "2 x c10d::allreduce_, the first at train.py:12".
[[nodiscard]] std::string words_of_collectives(const OpTrace& trace);

/// A process group that replays communicate by.
struct WatchedGroup {
  std::string name;
  int rank = 0;
  int size = 1;
  c10::intrusive_ptr<c10d::Store> store;  ///< nullptr: the ranks cannot be asked.
  std::function<void()> abort;
};

/// A graph whose replays are watched.
struct WatchedGraph {
  std::string holds;  ///< "2 x c10d::allreduce_, the first at train.py:12"
  std::chrono::milliseconds timeout;
  std::vector<WatchedGroup> groups;
};

/// Something that a replay comes to at its end.
class ReplayEnd {
 public:
  virtual ~ReplayEnd() = default;
  /// Whether it has; also where nobody can tell any more.
  [[nodiscard]] virtual bool has_come() = 0;
};

/// Watches the replays of a process that communicate.
class HangWatch {
 public:
  struct Options {
    std::chrono::milliseconds interval{200};    ///< Between two looks.
    std::chrono::milliseconds patience{3'000};  ///< For answers of other ranks.
    std::chrono::milliseconds grace{30'000};    ///< From the abort to the end of the process.
    bool acts = true;                           ///< Aborts communicators, and ends the process.
    std::function<void(const std::string& text)> say;
    std::function<void()> end_process;
  };

  /// @param options  Without `say` and `end_process`: to stderr, and by _Exit(1).
  explicit HangWatch(Options options);
  HangWatch(const HangWatch&) = delete;
  HangWatch& operator=(const HangWatch&) = delete;
  ~HangWatch();
  /// By the environment. Its thread begins with the first replay, and ends before the process does.
  static HangWatch& of_this_process();

  /// A replay was launched.
  void launched(const std::shared_ptr<const WatchedGraph>& graph, std::shared_ptr<ReplayEnd> end);
  /// @throws CommunicationError  One has not ended in its time: nothing that ranks communicated since is right.
  void check() {
    if (has_failed_.load(std::memory_order_acquire)) [[unlikely]]
      raise();
  }
  /// The group ends: its ranks are not asked any more, nor is its store kept, and what was told of its graphs is over.
  void forget(std::string_view group);
  /// Ends its thread.
  void stop() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Replay {
    std::shared_ptr<const WatchedGraph> graph;
    std::shared_ptr<ReplayEnd> end;
    std::uint64_t number;
    Clock::time_point begin;
  };

  [[noreturn]] void raise();
  void run() noexcept;
  void look();
  void answer();
  void tell(const Replay& replay);
  void abort(const WatchedGraph& graph);
  [[nodiscard]] std::string ask_others(const WatchedGroup& group, const std::string& mine);
  [[nodiscard]] std::string words_of(const Replay& replay, int rank) const;
  [[nodiscard]] std::string idle_words(int rank) const;
  bool sleep(std::chrono::milliseconds time);

  Options options_;
  std::mutex mutex_;
  std::condition_variable wakes_;
  std::deque<Replay> open_;           // in the order of their launches
  std::vector<WatchedGroup> groups_;  // that can be asked
  std::uint64_t launched_ = 0, ended_ = 0;
  Clock::time_point last_end_ = Clock::now();
  ProcessMark process_;
  std::shared_ptr<const WatchedGraph> failed_;
  std::string failure_;  // what is told of a replay that did not end
  std::atomic<bool> has_failed_ = false;
  bool was_raised_ = false, has_answered_ = false, stops_ = false;
  std::thread thread_;
};

}  // namespace pianola::graph
