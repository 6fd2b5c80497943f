#include <pianola/graph/pool_sleep.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/group_graphs.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/graph/ranks_of_pools.hpp>

#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <span>
#include <vector>

namespace pianola {
namespace {

using Pools = std::vector<std::shared_ptr<PoolState>>;

// The pool, where it may be asked now.
PoolState& outside_of_captures(PoolState& pool, const char* call) {
  pool.check_not_allocated_into(call);
  if (!graph::capture_is_open()) return pool;
  throw UsageError({.what = fmt::format("{} was called while a capture is open on this thread", call),
                    .fix = "call it when the capture has ended"});
}

PoolState& made_to_sleep(PoolState& pool) {
  if (pool.can_sleep()) return pool;
  throw UsageError({.what = "suspend() was called on a pool that was not made to sleep",
                    .fix = "make it with can_sleep: GraphPool(device, {.can_sleep = true}), in Python "
                           "GraphPool(device, can_sleep=True); and capture graphs into it by their option `pool`"});
}

// Of all of them, on all ranks with which their graphs communicate, or of none.
template <class Begun>
std::list<Begun> begin_together(std::span<const std::shared_ptr<PoolState>> pools, const char* call) {
  graph::RanksOfPools ranks(pools, call);
  std::list<Begun> begun;
  try {
    for (const std::shared_ptr<PoolState>& pool : pools) begun.emplace_back(*pool);
  } catch (...) {
    ranks.refuse(std::current_exception());
    throw;
  }
  ranks.agree();
  return begun;
}

std::size_t suspend_together(std::span<const std::shared_ptr<PoolState>> pools, const SuspendOptions& options) {
  std::size_t bytes = 0;
  for (auto& one : begin_together<PoolState::Suspending>(pools, "suspend()")) bytes += one.finish(options);
  return bytes;
}

void resume_together(std::span<const std::shared_ptr<PoolState>> pools) {
  for (auto& one : begin_together<PoolState::Resuming>(pools, "resume()")) one.finish();
}

// What is done with those whose graphs communicate, and with each of the others, all of them; then the first error is thrown.
template <typename Call>
void for_all_pools(const Call& call) {
  Pools pools = living_pools();
  std::erase_if(pools, [](const std::shared_ptr<PoolState>& pool) { return !pool->can_sleep(); });
  const auto of_ranks = std::stable_partition(
      pools.begin(), pools.end(), [](const std::shared_ptr<PoolState>& pool) { return !graph::communicates(*pool); });
  std::exception_ptr first;
  const auto attempt = [&](std::span<const std::shared_ptr<PoolState>> some) {
    try {
      call(some);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  };
  for (auto pool = pools.begin(); pool != of_ranks; ++pool) attempt({&*pool, 1});
  if (of_ranks != pools.end()) attempt({of_ranks, pools.end()});
  if (first) std::rethrow_exception(first);
}

}  // namespace

PoolState::Suspending::Suspending(PoolState& pool)
    : pool_(outside_of_captures(made_to_sleep(pool), "suspend()")),
      alone_(pool.captures_, "suspend()", "a graph pool"),
      was_asleep_(pool.is_asleep()) {
  if (was_asleep_) return;
  if (pool.device_.is_cuda() &&
      graph::GroupGraphs::of_this_process().any_uses([&](std::uintptr_t address) { return pool.holds(address); })) {
    throw UsageError(
        {.what =
             "a graph sends or receives memory of the pool: NCCL has registered it at the capture, and would use the "
             "old one after resume()",
         .fix = "capture it into a pool that does not sleep, or reset it before and capture it again after"});
  }
  pool.check_unused();  // else the next part of a replay that runs would find it asleep
  pool.is_ = Is::asleep;
  try {
    pool.check_unused();  // one that began meanwhile
    pool.graphs_.go_to_sleep();
    pool.prepare_sleep();
  } catch (...) {
    pool.end_sleep();
    pool.is_ = Is::ready;
    throw;
  }
}

void PoolState::check_unused() const {
  if (replays_.load() == 0) return;
  throw UsageError(
      {.what = "suspend() was called while a replay of a graph of the pool runs, whose memory it would take away",
       .fix = "call it when the replay has ended, not from a part of the step that stays eager"});
}

PoolState::Suspending::~Suspending() {
  if (was_asleep_ || is_finished_) return;
  pool_.end_sleep();
  pool_.is_ = Is::ready;
}

std::size_t PoolState::Suspending::finish(const SuspendOptions& options) {
  const std::size_t bytes = was_asleep_ ? 0 : pool_.let_memory_go();
  is_finished_ = true;
  pool_.drops_executables_ = (was_asleep_ && pool_.drops_executables_) || !options.keep_executables;
  if (pool_.drops_executables_) pool_.graphs_.drop_executables();
  return bytes;
}

PoolState::Resuming::Resuming(PoolState& pool)
    : pool_(outside_of_captures(pool, "resume()")),
      alone_(pool.captures_, "resume()", "a graph pool"),
      was_asleep_(pool.is_asleep()) {
  if (!was_asleep_) return;
  pool.take_memory_back();
  try {
    make_executables();
  } catch (...) {
    sleep_on();
    throw;
  }
}

// What nobody uses goes before they are given up, as for the pool's memory.
void PoolState::Resuming::make_executables() {
  try {
    pool_.graphs_.make_executables();
  } catch (const OutOfMemoryError&) {
    pool_.empty_cache();
    pool_.graphs_.make_executables();
  }
}

PoolState::Resuming::~Resuming() {
  if (was_asleep_ && !is_finished_) sleep_on();
}

void PoolState::Resuming::finish() noexcept {
  is_finished_ = true;
  if (!was_asleep_) return;
  pool_.end_sleep();
  pool_.is_ = Is::ready;
}

// Where the driver does not take the memory, the next resume() finds it.
void PoolState::Resuming::sleep_on() noexcept {
  if (pool_.drops_executables_) pool_.graphs_.drop_executables();
  try {
    (void)pool_.let_memory_go();
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: a pool that could not be resumed has its memory, and sleeps: ", error.what());
  }
}

// Whoever calls holds the pool.
std::size_t PoolState::suspend(const SuspendOptions& options) {
  const std::shared_ptr<PoolState> self(std::shared_ptr<PoolState>(), this);
  return suspend_together({&self, 1}, options);
}

void PoolState::resume() {
  const std::shared_ptr<PoolState> self(std::shared_ptr<PoolState>(), this);
  resume_together({&self, 1});
}

std::size_t suspend_all(const SuspendOptions& options) {
  std::size_t bytes = 0;
  for_all_pools([&](std::span<const std::shared_ptr<PoolState>> pools) { bytes += suspend_together(pools, options); });
  return bytes;
}

void resume_all() {
  for_all_pools([](std::span<const std::shared_ptr<PoolState>> pools) {
    const bool is_awake = std::ranges::none_of(pools, [](const auto& pool) { return pool->is_asleep(); });
    if (!is_awake || graph::communicates(*pools.front())) resume_together(pools);
  });
}

}  // namespace pianola
