#include <pianola/graph/cuda/cuda_pool.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/capture_mode.hpp>
#include <pianola/cuda/driver.hpp>
#include <pianola/graph/cuda/into_pool.hpp>
#include <pianola/graph/cuda/mapped_segments.hpp>
#include <pianola/graph/cuda/pool_blocks.hpp>
#include <pianola/graph/cuda/pool_returns.hpp>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

// A use of our own in the allocator of pinned memory, which offers none but by a capture: opened and closed at once. What
// is left of a pool of that name whose last user is gone makes it throw, and goes with the cache.
void hold_pinned_memory(PoolId pool) {
  at::HostAllocator& pinned = *at::getHostAllocator(at::kCUDA);
  const auto nothing = [](c10::Stream) { return false; };
  try {
    pinned.begin_allocate_to_pool(pool, nothing);
  } catch (const c10::Error&) {
    pinned.empty_cache();
    pinned.begin_allocate_to_pool(pool, nothing);
  }
  pinned.end_allocate_to_pool(pool);
}

// nullptr: torch's. With expandable segments it takes none of others, and pools share no region.
std::shared_ptr<allocator::CUDAAllocator> source_of_segments(PoolTraits traits) {
  if (traits.can_sleep) return sleeping_segments();
  const bool may_have_one = !c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments() &&
                            allocator::get()->name() == "native";
  return traits.shares_region && may_have_one ? mapped_segments() : nullptr;
}

void hold_device_memory(c10::Device device, PoolId pool, const std::shared_ptr<allocator::CUDAAllocator>& source) {
  try {
    allocator::get()->createOrIncrefPool(device.index(), pool, source);
  } catch (const c10::Error&) {
    if (allocator::get()->name() != "native") {
      throw UnsupportedError({.what = fmt::format("graphs need pools of memory, and torch's allocator {} has none",
                                                  allocator::get()->name()),
                              .fix = "leave backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF, and pluggable "
                                     "allocators"});
    }
    throw UsageError(
        {.what = fmt::format("pool ({}, {}) on {} has lost its last graph, and some of its memory is still in "
                             "use",
                             pool.first, pool.second, device.str()),
         .fix = "let go of the results of its graphs first, keep a GraphPool alive between them, or use a new "
                "pool"});
  }
}

}  // namespace

std::shared_ptr<PoolState> CudaPool::with_own_name(c10::Device device, std::shared_ptr<CudaPoolFamily> family,
                                                   PoolTraits traits, const Deleter& end) {
  const std::optional<PoolId> used = PoolReturns::instance().take_name();
  if (!used) {
    return {new CudaPool(device, at::cuda::graph_pool_handle(), PinnedUse::begins, std::move(family), traits), end};
  }
  try {
    return {new CudaPool(device, *used, PinnedUse::taken_over, family, traits), end};
  } catch (const UsageError&) {  // torch knows it still, without memory, as it does with expandable segments
    PoolReturns::instance().give_name_back(*used, /*name_is_free=*/false);
    return {new CudaPool(device, at::cuda::graph_pool_handle(), PinnedUse::begins, std::move(family), traits), end};
  } catch (...) {
    PoolReturns::instance().give_name_back(*used, /*name_is_free=*/true);
    throw;
  }
}

std::shared_ptr<PoolState> CudaPool::named(c10::Device device, PoolId name, const Deleter& end) {
  std::shared_ptr<PoolState> pool(new CudaPool(device, name, PinnedUse::begins, nullptr, {}), end);
  (void)pool->tell_id();  // whoever names it knows it
  return pool;
}

// The pool must live between its graphs, also when the last one is gone.
CudaPool::CudaPool(c10::Device device, PoolId name, PinnedUse pinned, std::shared_ptr<CudaPoolFamily> family,
                   PoolTraits traits)
    : PoolState(device, name, traits),
      is_alone_(family == nullptr),
      family_(is_alone_ ? std::make_shared<CudaPoolFamily>() : std::move(family)),
      turns_(family_->order()),
      clearance_(device, name, turns_) {
  allocator::init(c10::cuda::device_count());
  PoolReturns::instance().retry();
  const std::shared_ptr<allocator::CUDAAllocator> source = source_of_segments(traits);
  if (traits.shares_region && source != nullptr) clearance_.share_regions();
  hold_device_memory(device, id(), source);
  if (pinned == PinnedUse::taken_over) return;
  try {
    hold_pinned_memory(id());
  } catch (...) {
    allocator::releasePool(device.index(), id());
    throw;
  }
}

CudaPool::~CudaPool() {
  try {
    wake_for_good();
    for (const c10::cuda::CUDAStream& stream : replay_streams_) {
      workspaces_.record_stream(stream);
      family_->record_stream(stream);
    }
    workspaces_.clear();  // some may have been made in the pool
    clearance_.drop_regions(replay_streams_);
    PoolReturns::instance().give_back(device().index(), id(), !id_was_told(), replay_streams_);
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: a graph pool's memory could not be returned: ", error.what());
  }
}

// Tensors may outlive the graphs.
void CudaPool::wake_for_good() noexcept {
  if (!asleep_ || !asleep_->holds_any()) return;
  try {
    asleep_->wake();
  } catch (const std::exception& error) {
    TORCH_WARN(
        "pianola: a graph pool ended while it slept, and could not be resumed: tensors that still hold memory of it "
        "are lost; ",
        error.what());
  }
}

void CudaPool::note_replays_on(c10::cuda::CUDAStream stream, const PoolTurn& /*turn*/) {
  if (std::find(replay_streams_.begin(), replay_streams_.end(), stream) == replay_streams_.end()) {
    replay_streams_.push_back(stream);
  }
}

void CudaPool::drop_unused_regions() noexcept {
  if (graphs().count() != 0) return;
  try {
    clearance_.drop_unused_regions(replay_streams_);
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: the memory of a plan could not be returned: ", error.what());
  }
}

std::shared_ptr<void> CudaPool::allocate_into() {
  struct Allocations {
    std::shared_ptr<void> reservation;  // of what replays write
    IntoPool into_pool;
  };
  const auto is_this_thread = [thread = std::this_thread::get_id()](cudaStream_t) {
    return std::this_thread::get_id() == thread;
  };
  std::shared_ptr<void> reservation = reserve_used_memory();
  return std::shared_ptr<void>(new Allocations{std::move(reservation), {device().index(), id(), is_this_thread}},
                               [](void* made) { delete static_cast<Allocations*>(made); });
}

// It computes in cuBLAS's workspaces, which replays use.
void CudaPool::begin_warm_up() { PoolTurn(turns_).order().enter(device()); }
void CudaPool::end_warm_up() { PoolTurn(turns_).order().leave(); }

void CudaPool::prepare_sleep() {
  const PoolReturns::NoCaptures none("suspend()");  // CUDA forbids to wait for a device on which anybody captures
  const PoolTurn turn(turns_);
  asleep_.emplace(device(), id());
}

// Nothing waits here: others may capture.
std::size_t CudaPool::let_memory_go() {
  const RelaxedCaptureMode relaxed(Driver::get());
  const PoolTurn turn(turns_);
  return asleep_->give_back();
}

void CudaPool::take_memory_back() { asleep_->wake(); }
void CudaPool::empty_cache() { PoolReturns::instance().empty_cache_to_resume(); }

bool CudaPool::holds(std::uintptr_t address) const {
  return std::ranges::any_of(segments(), [&](const ByteSpan& segment) { return segment.contains(address); });
}

std::vector<ByteSpan> CudaPool::segments() const {
  std::vector<ByteSpan> spans;
  for (const auto& segment : segments_of(device(), id())) {
    spans.push_back({.begin = segment.address, .end = segment.address + segment.total_size});
  }
  return spans;
}

std::size_t CudaPool::bytes() const { return total_bytes(segments()); }

void CudaPool::account(PoolMemory& memory) const {
  std::vector<ByteSpan> held, free;
  for (const auto& segment : segments_of(device(), id())) {
    const std::vector<ByteSpan> inside = held_in(segment);
    held.insert(held.end(), inside.begin(), inside.end());
    free.push_back({.begin = segment.address, .end = segment.address + segment.total_size});
  }
  memory.bytes = total_bytes(free);
  held = merged(std::move(held));
  free = without(free, held);
  const std::vector<ByteSpan> fragments = without(free, PoolTurn(turns_).ledger().allocated());
  memory.held = total_bytes(held);
  memory.fragments = total_bytes(fragments);
  memory.scratch = total_bytes(free) - memory.fragments;
}

std::vector<ByteSpan> CudaPool::workspace_spans() const {
  std::vector<ByteSpan> spans = workspaces_.spans();
  const std::vector<ByteSpan> more = family_->spans();
  spans.insert(spans.end(), more.begin(), more.end());
  return merged(std::move(spans));
}

}  // namespace pianola::graph
