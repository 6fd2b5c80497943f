#include <pianola/graph/account/process_memory.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/process_mark.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/device_account.hpp>
#include <pianola/graph/cuda/driver_watch.hpp>
#include <pianola/trace/op_stream.hpp>
#endif

#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace pianola {
namespace {

std::int64_t as_signed(std::uint64_t bytes) { return static_cast<std::int64_t>(bytes); }

void add_facts(Report& report, const ProcessMemory& memory) {
  report.fact("used_bytes", "in use, as the driver says", *memory.used, "bytes")
      .fact("total_bytes", "that there is", memory.total, "bytes")
      .fact("tensor_bytes", "tensors outside of graphs' pools", memory.tensors, "bytes")
      .fact("workspace_bytes", "of these, workspaces of graphs", memory.workspaces, "bytes")
      .fact("returnable_bytes", "unused, empty_cache() gives it back", memory.returnable, "bytes")
      .fact("piece_bytes", "unused, in pieces", memory.pieces, "bytes")
      .fact("other_pool_bytes", "pools of others", memory.other_pools, "bytes")
      .fact("executable_bytes", "executables of graphs", memory.executables.device, "bytes")
      .fact("executable_host_bytes", "executables, on the host", memory.executables.host, "bytes")
      .fact("rest_bytes", memory.watched.empty() ? "context, libraries, kernels: nobody watched" : "not accounted for",
            memory.rest(), "bytes");
}

}  // namespace

std::int64_t ProcessMemory::rest() const {
  if (!used) return 0;
  std::uint64_t known = tensors + returnable + pieces + other_pools + executables.device;
  for (const PoolMemory& pool : pools) known += pool.is_asleep ? 0 : pool.bytes;
  std::int64_t rest = as_signed(*used) - as_signed(known);
  for (const WatchedMemory& one : watched) rest -= one.bytes;
  return rest;
}

Report ProcessMemory::report() const {
  Report report("Memory of a device");
  report.fact("device", "device", device.str());
  if (used) add_facts(report, *this);
  ReportTable rows("pools", "Pools of graphs",
                   {{"pool"},
                    {"graphs"},
                    {"bytes", "bytes", "bytes"},
                    {"held", "held", "bytes"},
                    {"scratch", "scratch", "bytes"},
                    {"fragments", "fragments", "bytes"},
                    {"executables", "executables", "bytes"},
                    {"is"}});
  for (const PoolMemory& pool : pools) {
    rows.row({fmt::format("({}, {})", pool.id.first, pool.id.second), pool.graphs, pool.bytes, pool.held, pool.scratch,
              pool.fragments, pool.executables.device, pool.is_asleep ? "asleep" : "awake"});
  }
  report.table(std::move(rows));
  ReportTable takers("watched", "Outside of torch's allocator",
                     {{"what"}, {"bytes", "bytes", "bytes"}, {"first taken in"}});
  for (const WatchedMemory& one : watched) takers.row({one.what, one.bytes, one.first});
  if (!watched.empty()) report.table(std::move(takers));
  return report;
}

ProcessMemory process_memory(c10::Device any_device) {
  ProcessMemory memory;
  memory.device = graph::usable_device(any_device);
  for (const std::shared_ptr<PoolState>& pool : living_pools()) {
    if (pool->device() != memory.device) continue;
    PoolMemory one = pool->memory();
    if (one.bytes == 0 && one.graphs == 0) continue;
    memory.executables.device += one.executables.device;
    memory.executables.host += one.executables.host;
    memory.pools.push_back(one);
  }
#if PIANOLA_WITH_CUDA
  if (memory.device.is_cuda()) graph::account_of_device(memory);
#endif
  return memory;
}

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
