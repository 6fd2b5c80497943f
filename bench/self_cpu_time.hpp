#pragma once
#include "harness.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace pianola::bench {

/// What a thread of the host did, in nanoseconds.
struct HostEvent {
  std::uint64_t thread = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Nanoseconds of all events, each without those that lie inside it on its thread.
std::uint64_t self_time(std::vector<HostEvent> events);

/// Whether time in which the host only waits for the device counts as its time.
enum class Waits { counted, left_out };

/// Self CPU time, per iteration, as torch.profiler's tables sum it up ("Self CPU time total"): of operators, nodes of
/// autograd and calls of CUDA's runtime, on all threads, while torch's profiler records `count` iterations. It is not the
/// time that iterations take: what lies between operators is not in it, and the profiler's own cost is.
///
/// @param synchronize  Ends what is recorded, as it does in torch.profiler; with Waits::counted its call is in the sum.
/// Throws, when it runs, what the iteration throws; the profiler has ended then.
Timer self_cpu_timer(std::function<void()> synchronize, Waits waits);

}  // namespace pianola::bench
