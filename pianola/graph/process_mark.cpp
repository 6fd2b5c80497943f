#include <pianola/graph/process_mark.hpp>

#include <pthread.h>

#include <atomic>
#include <cstdlib>

namespace pianola::graph {
namespace {

std::atomic<bool> process_ends = false;
thread_local bool thread_has_ended = false;

struct ThreadEnd {
  ThreadEnd() noexcept {}  // NOLINT(modernize-use-equals-default): else nobody makes it
  ThreadEnd(const ThreadEnd&) = delete;
  ThreadEnd& operator=(const ThreadEnd&) = delete;
  ~ThreadEnd() { thread_has_ended = true; }
};

// exit() ends this thread's thread-locals first, then what is static, the youngest first. What became static before the first mark is
// known by `process_ends`, whichever thread calls exit().
void watch_for_the_end() noexcept {
  thread_local const ThreadEnd of_this_thread;
  [[maybe_unused]] static const int of_the_process = std::atexit([] { process_ends = true; });
}

}  // namespace

int ProcessMark::forks_so_far_ = 0;

// Asking for the process id would be a system call in each replay.
ProcessMark::ProcessMark() noexcept {
  [[maybe_unused]] static const int counting = pthread_atfork(nullptr, nullptr, [] { ++forks_so_far_; });
  watch_for_the_end();
  forks_ = forks_so_far_;
}

bool ProcessMark::may_clean_up() const noexcept { return is_this_process() && !process_ends && !thread_has_ended; }

}  // namespace pianola::graph
