#include <pianola/graph/process_mark.hpp>

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace pianola::graph {
namespace {

std::atomic<bool> process_ends = false;
thread_local bool thread_has_ended = false;

// exit() ends this thread's thread-locals first, then what is static, the youngest first. What became static before the first mark is
// known by `process_ends`, whichever thread calls exit(). For the rest that thread has to be known; the main thread is, without a mark.
void watch_for_the_end() noexcept {
  thread_local const ThreadEnd of_this_thread;
  [[maybe_unused]] static const int of_the_process = std::atexit([] { process_ends = true; });
}

[[maybe_unused]] const bool main_thread_is_known = [] {
  thread_local const ThreadEnd of_the_main_thread;
  return true;
}();

// Note [Behind the end of a thread]
// A thread destroys its thread-locals, then what it has under keys of pthread's. exit() does the first alone, for the thread that calls
// it. So what waits under a key is ended where the thread ends and the process goes on, and else is the driver's to free. A thread
// without thread-locals cannot call torch: another one does, and has ended before this one has.
struct Waiting {
  void* owned;
  void (*end)(void* owned) noexcept;
};
using AllWaiting = std::vector<Waiting>;

void end_all(void* waiting) {
  const std::unique_ptr<AllWaiting> all(static_cast<AllWaiting*>(waiting));
  if (process_ends) return;
  try {
    std::thread([&all] {
      for (const Waiting& one : *all) one.end(one.owned);
    }).join();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): there is no thread, and their memory stays
  }
}

std::optional<pthread_key_t> key_of_waiting() {
  static const auto key = []() -> std::optional<pthread_key_t> {
    pthread_key_t made{};
    return pthread_key_create(&made, &end_all) == 0 ? std::optional(made) : std::nullopt;
  }();
  return key;
}

// Where that fails, its memory stays.
void end_behind_this_thread(const Waiting& one) noexcept {
  try {
    const auto key = key_of_waiting();
    if (!key) return;
    auto* all = static_cast<AllWaiting*>(pthread_getspecific(*key));
    if (all == nullptr) {
      auto made = std::make_unique<AllWaiting>();
      if (pthread_setspecific(*key, made.get()) != 0) return;
      all = made.release();
    }
    all->push_back(one);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace

int ProcessMark::forks_so_far_ = 0;

// Asking for the process id would be a system call in each replay.
ProcessMark::ProcessMark() noexcept {
  [[maybe_unused]] static const int counting = pthread_atfork(nullptr, nullptr, [] { ++forks_so_far_; });
  watch_for_the_end();
  forks_ = forks_so_far_;
}

ThreadEnd::~ThreadEnd() { thread_has_ended = true; }

void end_made_with(const ProcessMark& mark, void* owned, void (*end)(void* owned) noexcept) noexcept {
  if (!mark.is_this_process() || process_ends) return;
  if (thread_has_ended) return end_behind_this_thread({.owned = owned, .end = end});
  end(owned);
}

}  // namespace pianola::graph
