#include <pianola/graph/cuda/pool_returns.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/capture_info.hpp>
#include <pianola/graph/cuda/free_memory.hpp>
#include <pianola/trace/allocator_events.hpp>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

// Events of pools have nothing to do with a capture that is open, whose mode may forbid to ask for them.
using Relaxed = c10::cuda::CUDAStreamCaptureModeGuard;

// Each keeps 47 KiB of host memory until then. torch.cuda.graph empties that cache at every capture.
constexpr int kMostToldNames = 16;

struct ExpandableSegments {
  bool any = false, any_held = false;
};

ExpandableSegments expandable_segments_of(PoolId pool) {
  ExpandableSegments found;
  for (const auto& segment : allocator::snapshot(pool, /*include_traces=*/false).segments) {
    found.any |= segment.is_expandable;
    found.any_held |= segment.is_expandable && segment.active_size != 0;
  }
  return found;
}

// A block that other streams used is held until events of theirs are over, which torch looks at when it is asked for memory.
void let_torch_look_at_events(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard on_device(device);
  if (capture_status(c10::cuda::getCurrentCUDAStream(device).stream()) != CaptureStatus::none) return;
  const trace::OwnMemory own;
  const Relaxed relaxed(cudaStreamCaptureModeRelaxed);  // another thread's capture may forbid to ask for a segment
  allocator::raw_delete(allocator::raw_alloc(1));
}

bool is_gone(PoolId pool) {
  allocator::emptyCache(pool);
  return allocator::snapshot(pool, /*include_traces=*/false).segments.empty();
}

}  // namespace

PoolReturns& PoolReturns::instance() {
  static PoolReturns& returns = *new PoolReturns;  // never destroyed: a static Graph may end after it
  return returns;
}

PoolReturns::Pause::Pause() {
  PoolReturns& returns = instance();
  std::unique_lock lock(returns.mutex_);
  returns.captures_may_begin_.wait(lock, [&] { return returns.no_captures_ == 0; });
  ++returns.pauses_;
}

PoolReturns::NoCaptures::NoCaptures(const char* call) {
  PoolReturns& returns = instance();
  const std::lock_guard lock(returns.mutex_);
  if (returns.pauses_ != 0) {
    throw UsageError({.what = fmt::format("{} was called while a step is captured", call),
                      .fix = "call it when that capture has ended"});
  }
  ++returns.no_captures_;
}

PoolReturns::NoCaptures::~NoCaptures() {
  PoolReturns& returns = instance();
  {
    const std::lock_guard lock(returns.mutex_);
    --returns.no_captures_;
  }
  returns.captures_may_begin_.notify_all();
}

PoolReturns::Pause::~Pause() {
  PoolReturns& returns = instance();
  const std::lock_guard lock(returns.mutex_);
  --returns.pauses_;
  returns.retry_locked();
}

void PoolReturns::make_room(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  if (pauses_ == 0) make_room_for_a_pool(device);
}

void PoolReturns::empty_cache_to_resume() {
  const std::lock_guard lock(mutex_);
  if (pauses_ != 0) {
    throw OutOfMemoryError({.what =
                                "there is no room to resume a pool, and what torch's allocator holds unused cannot go "
                                "back to the driver while a step is captured; the pool sleeps on",
                            .fix = "call resume() when that capture has ended",
                            .rule = "PG908"});
  }
  allocator::emptyCache();
}

bool PoolReturns::Ended::note_work(const std::vector<c10::cuda::CUDAStream>& streams) noexcept {
  try {
    const Relaxed relaxed(cudaStreamCaptureModeRelaxed);
    for (const c10::cuda::CUDAStream& stream : streams) {
      if (capture_status(stream.stream()) != CaptureStatus::none) return false;
      work.emplace_back().record(stream);
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool PoolReturns::Ended::is_idle() const noexcept {
  try {
    const Relaxed relaxed(cudaStreamCaptureModeRelaxed);
    return std::all_of(work.begin(), work.end(), [](const at::cuda::CUDAEvent& event) { return event.query(); });
  } catch (const std::exception&) {
    return false;
  }
}

void PoolReturns::Ended::wait_for_work() const noexcept {
  try {
    const Relaxed relaxed(cudaStreamCaptureModeRelaxed);
    for (const at::cuda::CUDAEvent& event : work) event.synchronize();
  } catch (const std::exception&) {  // then it is not idle
  }
}

bool PoolReturns::Ended::release() {
  if (!is_in_use) return true;
  const ExpandableSegments expandable = expandable_segments_of(pool);
  if (expandable.any_held || (expandable.any && !is_idle())) return false;
  allocator::releasePool(device, pool);
  is_in_use = false;
  return true;
}

void PoolReturns::give_back(c10::DeviceIndex device, PoolId pool, bool name_is_free,
                            const std::vector<c10::cuda::CUDAStream>& replayed_on) {
  Ended ended{.device = device, .pool = pool, .is_in_use = true, .name_is_free = name_is_free, .work = {}};
  const bool knows_work = ended.note_work(replayed_on);
  ended.name_is_free = name_is_free && knows_work;
  if (expandable_segments_of(pool).any) ended.wait_for_work();  // as cudaFree does where segments are others
  (void)ended.release();
  add(std::move(ended));
}

void PoolReturns::give_name_back(PoolId pool, bool name_is_free) {
  add({.device = 0, .pool = pool, .is_in_use = false, .name_is_free = name_is_free, .work = {}});
}

void PoolReturns::add(Ended ended) {
  if (!ended.name_is_free) at::getHostAllocator(at::kCUDA)->release_pool(ended.pool);
  const std::lock_guard lock(mutex_);
  if (!ended.name_is_free) ++told_names_;
  ended_.push_back(std::move(ended));
  retry_locked();
}

void PoolReturns::retry() {
  const std::lock_guard lock(mutex_);
  retry_locked();
  if (told_names_ < kMostToldNames || pauses_ != 0) return;
  told_names_ = 0;
  try {
    const Relaxed relaxed(cudaStreamCaptureModeRelaxed);
    at::getHostAllocator(at::kCUDA)->empty_cache();
  } catch (const c10::Error&) {  // whoever uses the device next is told
  }
}

// Other code may capture as well, and says so by an error of the allocator's alone: then the rest waits.
void PoolReturns::retry_locked() {
  if (pauses_ != 0) return;
  std::vector<Ended> waiting;
  std::set<c10::DeviceIndex> looked_at;
  bool may_free = true;
  for (Ended& ended : ended_) {
    bool gone = false;
    try {
      if (may_free && ended.is_in_use && looked_at.insert(ended.device).second) let_torch_look_at_events(ended.device);
      gone = may_free && ended.release() && is_gone(ended.pool);
    } catch (const c10::Error&) {
      may_free = false;
    }
    if (!gone) {
      waiting.push_back(std::move(ended));
    } else if (ended.name_is_free) {
      names_.push_back(std::move(ended));
    }
  }
  ended_ = std::move(waiting);
}

// The one that ended first is the likeliest to be idle.
std::optional<PoolId> PoolReturns::take_name() {
  const std::lock_guard lock(mutex_);
  const auto idle = std::find_if(names_.begin(), names_.end(), [](const Ended& ended) { return ended.is_idle(); });
  if (idle == names_.end()) return std::nullopt;
  const PoolId name = idle->pool;
  names_.erase(idle);
  return name;
}

}  // namespace pianola::graph
