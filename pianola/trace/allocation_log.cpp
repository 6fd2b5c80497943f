#include <pianola/trace/allocation_log.hpp>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#endif

#include <algorithm>
#include <atomic>
#include <utility>

namespace pianola::trace {
namespace {

AllocationLog*& log_of_this_thread() {
  thread_local AllocationLog* log = nullptr;
  return log;
}

// Hands everything on. Tensors keep a pointer to the allocator that made them, so it is never destroyed, and what it
// hands on to never changes.
class ForwardingAllocator final : public c10::Allocator {
 public:
  explicit ForwardingAllocator(c10::Allocator* to) : to_(to) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr data = to_->allocate(bytes);
    if (AllocationLog* log = log_of_this_thread(); log != nullptr) log->note_for_all(data.get());
    return data;
  }
  [[nodiscard]] bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return to_->is_simple_data_ptr(data);
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return to_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { to_->copy_data(to, from, bytes); }
  [[nodiscard]] c10::Allocator* target() const noexcept { return to_; }

 private:
  c10::Allocator* to_;
};

// Logs that are open on any thread; each sees to it that the forwarding allocator is in place, and the last takes it out again.
struct OpenLogs {
  std::mutex mutex;
  std::vector<AllocationLog*> all;
  std::vector<std::unique_ptr<ForwardingAllocator>> forwarding;  // one for each allocator that was ever there
  c10::Allocator* replaced = nullptr;
  ForwardingAllocator* in_place = nullptr;

  // Not only by the first log: somebody may have put in another allocator since then, or one of these again.
  void put_in() {
    c10::Allocator* const now = c10::GetCPUAllocator();
    const auto ours =
        std::find_if(forwarding.begin(), forwarding.end(), [&](const auto& one) { return one.get() == now; });
    if (ours != forwarding.end()) {
      in_place = ours->get();
      replaced = in_place->target();
      return;
    }
    replaced = now;
    const auto known = std::find_if(forwarding.begin(), forwarding.end(),
                                    [&](const auto& candidate) { return candidate->target() == replaced; });
    in_place = known != forwarding.end()
                   ? known->get()
                   : forwarding.emplace_back(std::make_unique<ForwardingAllocator>(replaced)).get();
    c10::SetCPUAllocator(in_place);  // stays out where somebody put one in with a higher priority
  }

  // Another allocator that the step put in stays.
  void take_out() const {
    if (c10::GetCPUAllocator() == in_place) c10::SetCPUAllocator(replaced);
  }
};

OpenLogs& open_logs() {
  static auto* const logs = new OpenLogs;  // tensors may outlive the program's statics
  return *logs;
}

#if PIANOLA_WITH_CUDA
// torch's hook cannot be taken out again; it does nothing while no log is open. Allocators other than torch's native one
// have no such hook: their untracked memory then looks like a tensor from outside.
void watch_cuda_once() {
  static std::atomic<bool> watching = false;
  auto* const allocator = c10::cuda::CUDACachingAllocator::allocator.load();
  if (allocator == nullptr || !allocator->initialized() || watching.exchange(true)) return;
  try {
    using Entry = c10::CachingDeviceAllocator::TraceEntry;
    allocator->attachAllocatorTraceTracker([](const Entry& entry) {
      if (entry.action_ != Entry::ALLOC) return;
      OpenLogs& logs = open_logs();
      const std::lock_guard lock(logs.mutex);
      for (AllocationLog* log : logs.all) {
        if (log->of() == AllocationLog::Of::all_devices) log->note(reinterpret_cast<const void*>(entry.addr_));
      }
    });
  } catch (const c10::Error&) {
  }
}
#endif

}  // namespace

AllocationLog::AllocationLog(Of of) : of_(of), outer_(log_of_this_thread()) {
  OpenLogs& logs = open_logs();
  {
    const std::lock_guard lock(logs.mutex);
    logs.put_in();
    logs.all.push_back(this);
  }
#if PIANOLA_WITH_CUDA
  if (of_ == Of::all_devices) watch_cuda_once();
#endif
  log_of_this_thread() = this;
}

AllocationLog::~AllocationLog() {
  AllocationLog** link = &log_of_this_thread();
  while (*link != nullptr && *link != this) link = &(*link)->outer_;
  if (*link == this) *link = outer_;
  OpenLogs& logs = open_logs();
  const std::lock_guard lock(logs.mutex);
  std::erase(logs.all, this);
  if (logs.all.empty()) logs.take_out();
}

void AllocationLog::note(const void* data) {
  if (data == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  if (!paused_) return fresh_.push_back(data);
  settle();
  known_.erase(data);
}

void AllocationLog::note_for_all(const void* data) {
  for (AllocationLog* log = this; log != nullptr; log = log->outer_) log->note(data);
}

bool AllocationLog::sees_the_cpu() {
  OpenLogs& logs = open_logs();
  const std::lock_guard lock(logs.mutex);
  return !logs.all.empty() && c10::GetCPUAllocator() == logs.in_place;
}

void AllocationLog::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  fresh_.clear();
}

void AllocationLog::pause(bool paused) {
  const std::lock_guard lock(mutex_);
  paused_ = paused;
}

void AllocationLog::settle() {
  known_.insert(fresh_.begin(), fresh_.end());
  fresh_.clear();
}

bool AllocationLog::contains(const void* data) {
  const std::lock_guard lock(mutex_);
  settle();
  return known_.count(data) != 0;
}

}  // namespace pianola::trace
