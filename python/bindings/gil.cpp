#include <bindings/gil.hpp>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace pianola::python {
namespace {

std::atomic<int> threads_without_gil = 0;
thread_local int regions = 0;  // of this thread, one in the other

constexpr auto kPatience = std::chrono::seconds(2);

// After the interpreter has ended, before the process destroys what threads may use.
void wait_for_threads() {
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (threads_without_gil.load() > 0 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

void park() noexcept {
  if (regions > 0) --threads_without_gil;
  for (;;) pause();
}

WithoutGil::WithoutGil() {
  if (++regions == 1) ++threads_without_gil;
  state_ = PyEval_SaveThread();
}

WithoutGil::~WithoutGil() {
  or_park([this] { PyEval_RestoreThread(state_); });
  if (--regions == 0) --threads_without_gil;
}

void wait_for_threads_at_exit() { (void)Py_AtExit(&wait_for_threads); }

}  // namespace pianola::python
