#include <pianola/graph/fork.hpp>

#include <pthread.h>

namespace pianola::graph {

int ProcessMark::forks_so_far_ = 0;

// Asking for the process id would be a system call in each replay.
ProcessMark::ProcessMark() noexcept {
  [[maybe_unused]] static const int counting = pthread_atfork(nullptr, nullptr, [] { ++forks_so_far_; });
  forks_ = forks_so_far_;
}

}  // namespace pianola::graph
