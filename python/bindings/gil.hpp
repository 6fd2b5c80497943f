#pragma once
#include <torch/csrc/utils/pybind.h>

#include <cxxabi.h>

#include <optional>

namespace pianola::python {

// Note [Threads at the end of the interpreter]
// An interpreter that ends gives its lock to nobody else. Up to Python 3.13 a daemon thread that asks for it is ended by
// pthread_exit(), which unwinds its stack: through destructors that must not throw, which aborts the process, or through
// our own catch (...), which does the same. So such a thread is parked instead, as Python 3.14 does: it sleeps until the
// process is gone. And the interpreter's end waits a while for threads that are in our C++ (a replay), so that what they
// use is not destroyed under their hands.

/// This thread runs nothing any more.
[[noreturn]] void park() noexcept;

/// Calls `python`, which needs the interpreter's lock or asks for it; parks this thread where the interpreter has ended.
template <typename Function>
auto or_park(const Function& python) {
  try {
    return python();
  } catch (const abi::__forced_unwind&) {
    park();
  }
}

/// Without the interpreter's lock, while it lives; in place of py::gil_scoped_release.
class WithoutGil {
 public:
  WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil();

 private:
  PyThreadState* state_;
};

/// For functions of the module that run without the interpreter's lock.
using NoGil = py::call_guard<WithoutGil>;

/// With the interpreter's lock, while it lives, on whatever thread; in place of py::gil_scoped_acquire.
class WithGil {
 public:
  WithGil() {
    or_park([this] { gil_.emplace(); });
  }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() = default;

 private:
  std::optional<py::gil_scoped_acquire> gil_;
};

/// Once, at import.
void wait_for_threads_at_exit();

}  // namespace pianola::python
