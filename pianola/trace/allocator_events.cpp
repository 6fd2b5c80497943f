#include <pianola/trace/allocator_events.hpp>

#include <pianola/core/out_of_memory_error.hpp>

#include <c10/core/CPUAllocator.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#endif

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace pianola::trace {
namespace {

AllocatorWatch*& watch_of_this_thread() {
  thread_local AllocatorWatch* watch = nullptr;
  return watch;
}

// The end of a block of the CPU of which somebody wants to hear. A block whose context is itself has to stay so: that is what
// raw_allocate() asks for, by which oneDNN gets its scratch. So there is no room for more than the function, and only blocks of
// torch's own allocator end by it.
void free_and_tell(void* block);

c10::DeleterFnPtr deleter_of_torch() {
  static const c10::DeleterFnPtr deleter = c10::GetDefaultCPUAllocator()->raw_deleter();
  return deleter;
}

}  // namespace

// Hands everything on. Tensors keep a pointer to the allocator that made them, so it is never destroyed, and what it
// hands on to never changes.
class ForwardingAllocator final : public c10::Allocator {
 public:
  explicit ForwardingAllocator(c10::Allocator* to) : to_(to) {}
  c10::DataPtr allocate(std::size_t bytes) override;
  [[nodiscard]] bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return to_->is_simple_data_ptr(data);
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override {
    const c10::DeleterFnPtr deleter = to_->raw_deleter();
    return deleter == deleter_of_torch() ? &free_and_tell : deleter;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { to_->copy_data(to, from, bytes); }
  [[nodiscard]] c10::Allocator* target() const noexcept { return to_; }

 private:
  c10::Allocator* to_;
};

// Watches that are open on any thread; each sees to it that the forwarding allocator is in place, and the last takes it out again.
struct OpenWatches {
  std::mutex mutex;
  std::vector<AllocatorWatch*> all;
  std::atomic<int> of_cpu = 0, of_devices = 0, of_frees = 0;     // of these
  std::vector<std::unique_ptr<ForwardingAllocator>> forwarding;  // one for each allocator that was ever there
  c10::Allocator* replaced = nullptr;
  ForwardingAllocator* in_place = nullptr;

  static OpenWatches& instance() {
    static auto* const watches = new OpenWatches;  // tensors may outlive the program's statics
    return *watches;
  }

  // Not only by the first watch: somebody may have put in another allocator since then, or one of these again.
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

  void count(AllocatorWatch::Of of, int more) {
    if (of != AllocatorWatch::Of::cuda) of_cpu += more;
    if (of != AllocatorWatch::Of::cpu) of_devices += more;
    if (of == AllocatorWatch::Of::with_frees) of_frees += more;
  }

  static bool tell_this_thread(const AllocatorEvent& event) {
    bool wants_end = false;
    for (AllocatorWatch* watch = watch_of_this_thread(); watch != nullptr; watch = watch->outer_) {
      watch->show(event);
      wants_end = wants_end || watch->of_ == AllocatorWatch::Of::with_frees;
    }
    return wants_end;
  }

  void tell(const AllocatorEvent& event, AllocatorWatch::Of least) {
    const std::lock_guard lock(mutex);
    for (AllocatorWatch* watch : all) {
      if (watch->of_ >= least) watch->show(event);
    }
  }
};

c10::DataPtr ForwardingAllocator::allocate(std::size_t bytes) {
  c10::DataPtr data = to_->allocate(bytes);
  if (watch_of_this_thread() == nullptr || data.get() == nullptr) return data;
  void* const address = data.get();
  const c10::Device device = data.device();
  const bool wants_end = OpenWatches::tell_this_thread(
      {.device = device, .address = reinterpret_cast<std::uintptr_t>(address), .bytes = bytes});
  if (wants_end && data.get_context() == address) {
    (void)data.compare_exchange_deleter(deleter_of_torch(), &free_and_tell);
  }
  return data;
}

namespace {

void free_and_tell(void* block) {
  OpenWatches& watches = OpenWatches::instance();
  if (block != nullptr && watches.of_frees.load(std::memory_order_relaxed) != 0) {
    watches.tell({.freed = true, .address = reinterpret_cast<std::uintptr_t>(block)}, AllocatorWatch::Of::with_frees);
  }
  deleter_of_torch()(block);
}

std::atomic<bool> hooked_into_cuda = false;

#if PIANOLA_WITH_CUDA
// torch's hook cannot be taken out again; it does nothing while nobody watches. Whoever comes second waits until it is in.
void watch_cuda_once() {
  static auto* const mutex = new std::mutex;
  const std::lock_guard lock(*mutex);
  auto* const allocator = c10::cuda::CUDACachingAllocator::allocator.load();
  if (hooked_into_cuda || allocator == nullptr || !allocator->initialized()) return;
  try {
    using Entry = c10::CachingDeviceAllocator::TraceEntry;
    allocator->attachAllocatorTraceTracker([](const Entry& entry) {
      const bool freed = entry.action_ == Entry::FREE_COMPLETED;
      if (!freed && entry.action_ != Entry::ALLOC) return;
      AllocatorWatch::tell_of_cuda({.freed = freed,
                                    .device = c10::Device(c10::kCUDA, entry.device_),
                                    .address = entry.addr_,
                                    .bytes = entry.size_,
                                    .pool = entry.mempool_,
                                    .stream = reinterpret_cast<std::uintptr_t>(entry.stream_)});
    });
    hooked_into_cuda = true;
  } catch (const c10::Error&) {  // another allocator than the native one
  }
}
#endif

}  // namespace

AllocatorWatch::AllocatorWatch(AllocatorListener& listener, Of of) : listener_(listener), of_(of) {
  OpenWatches& watches = OpenWatches::instance();
  {
    const std::lock_guard lock(watches.mutex);
    if (of != Of::cuda) watches.put_in();
    watches.all.push_back(this);
    watches.count(of, 1);
  }
#if PIANOLA_WITH_CUDA
  if (of_ != Of::cpu) watch_cuda_once();
#endif
  if (of != Of::cuda) outer_ = std::exchange(watch_of_this_thread(), this);
}

AllocatorWatch::~AllocatorWatch() {
  if (of_ != Of::cuda) {
    AllocatorWatch** link = &watch_of_this_thread();
    while (*link != nullptr && *link != this) link = &(*link)->outer_;
    if (*link == this) *link = outer_;
  }
  OpenWatches& watches = OpenWatches::instance();
  const std::lock_guard lock(watches.mutex);
  std::erase(watches.all, this);
  watches.count(of_, -1);
  if (of_ != Of::cuda && watches.of_cpu == 0) watches.take_out();
}

void AllocatorWatch::show(const AllocatorEvent& event) noexcept {
  try {
    listener_.on_memory(event);
  } catch (...) {
    lost_.store(true, std::memory_order_relaxed);
  }
}

void AllocatorWatch::check() const {
  if (!lost_.load(std::memory_order_relaxed)) return;
  throw OutOfMemoryError({.what = "the host has no memory left to note what torch's allocator hands out",
                          .fix = "free memory of the host",
                          .rule = "PG908"});
}

void AllocatorWatch::tell_of_cuda(const AllocatorEvent& event) {
  OpenWatches& watches = OpenWatches::instance();
  if (watches.of_devices.load(std::memory_order_relaxed) != 0) watches.tell(event, Of::cuda);
}

int& OwnMemory::depth() noexcept {
  thread_local int depth = 0;
  return depth;
}

bool AllocatorWatch::sees_the_cpu() {
  OpenWatches& watches = OpenWatches::instance();
  const std::lock_guard lock(watches.mutex);
  return watches.of_cpu != 0 && c10::GetCPUAllocator() == watches.in_place;
}

bool AllocatorWatch::sees_frees_of_the_cpu() {
  if (!sees_the_cpu()) return false;
  OpenWatches& watches = OpenWatches::instance();
  const std::lock_guard lock(watches.mutex);
  return watches.in_place->target()->raw_deleter() == deleter_of_torch();
}

bool AllocatorWatch::sees_cuda() noexcept { return hooked_into_cuda.load(std::memory_order_relaxed); }

}  // namespace pianola::trace
