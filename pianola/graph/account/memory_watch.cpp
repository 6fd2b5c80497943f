#include <pianola/graph/account/memory_watch.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/open_capture.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/driver_watch.hpp>
#include <pianola/graph/process_mark.hpp>
#include <pianola/trace/op_stream.hpp>

#include <c10/util/Exception.h>

#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>
#endif

#include <memory>

namespace pianola {

#if PIANOLA_WITH_CUDA
struct MemoryWatch::Impl {
  // Those of a thread that has not ended. Torch finds what shows them the operations by a thread-local of its own, and looks whenever
  // memory is freed, be it by a static tensor in exit(): they leave it before it ends.
  struct OfThread {
    OfThread() = default;
    OfThread(const OfThread&) = delete;
    OfThread& operator=(const OfThread&) = delete;
    ~OfThread() {
      for (auto watch = open.rbegin(); watch != open.rend(); ++watch) (*watch)->leave_thread();
      open.clear();
    }
    std::vector<Impl*> open;  // the innermost last
  };
  static OfThread& of_this_thread() {
    thread_local OfThread watches;  // younger than torch's, which the first watch has made
    return watches;
  }

  explicit Impl(c10::Device device) : watch(std::make_unique<graph::DriverWatch>(device)) {
    stream.emplace(std::vector<trace::OpObserver*>{watch.get()});
    of_this_thread().open.push_back(this);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (stream) std::erase(of_this_thread().open, this);
  }

  void leave_thread() {
    const std::lock_guard lock(mutex);
    stream.reset();
  }
  bool may_go() {
    const std::lock_guard lock(mutex);
    return stream && thread == std::this_thread::get_id() && stream->is_innermost();
  }
  // The watch is over, but what is bound to its thread has to stay.
  static void end_but_for_the_stream(std::unique_ptr<Impl> impl) {
    const graph::ProcessMark process = impl->process;
    std::unique_ptr<graph::DriverWatch> watch;
    {
      Impl& over = *impl;
      const std::lock_guard lock(over.mutex);
      watch = std::move(over.watch);
      if (over.stream) {
        over.stream->disarm();
        (void)impl.release();
      }
    }
    graph::end_made_with(process, watch.release());
  }
  bool is_over() {
    const std::lock_guard lock(mutex);
    return watch == nullptr;
  }
  // Those of this thread whose watch ended before the ones inside of it.
  static void end_what_stayed() {
    std::vector<Impl*>& open = of_this_thread().open;
    while (!open.empty() && open.back()->is_over() && open.back()->may_go()) delete open.back();
  }

  graph::ProcessMark process;
  std::mutex mutex;  // of what follows: the thread may end while another one ends the watch
  std::unique_ptr<graph::DriverWatch> watch;
  std::optional<trace::OpStream> stream;  // empty: the thread has ended
  std::thread::id thread = std::this_thread::get_id();
};
#else
struct MemoryWatch::Impl {};
#endif

MemoryWatch::MemoryWatch(c10::Device any_device) {
  const c10::Device device = graph::usable_device(any_device);
  if (graph::capture_is_open()) {
    throw UsageError({.what = "a memory watch was begun while a capture is open on this thread",
                      .fix = "begin it before: what a capture takes, the account has by itself"});
  }
#if PIANOLA_WITH_CUDA
  if (device.is_cuda()) impl_ = std::make_unique<Impl>(device);
#endif
}

MemoryWatch::~MemoryWatch() {
#if PIANOLA_WITH_CUDA
  if (impl_ == nullptr) return;
  // What shows it the operations can be undone on its own thread alone, where a capture or a watch inside of it is over; nor in exit().
  if (!impl_->may_go()) {
    Impl::end_but_for_the_stream(std::move(impl_));
    return;
  }
  if (const auto failure = impl_->stream->failure()) TORCH_WARN("pianola: a memory watch broke off: ", failure->what);
  impl_.reset();
  Impl::end_what_stayed();
#endif
}

}  // namespace pianola
