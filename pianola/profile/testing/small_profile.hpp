#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/decision.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace pianola::profiling {

/// A profile of numbers that are easy to follow, which tests change where they want to.
///
/// Three iterations of 1.0, 1.2 and 1.1 ms: in each a range "step", a launch of 10 us, a gap of 100 us because of it,
/// and a kernel of 500 us on stream 7.
struct SmallProfile {
  Timeline timeline;
  Analysis analysis;
  Decision decision;

  SmallProfile() {
    Nanoseconds begin = 0;
    for (const Nanoseconds duration : {1'000'000, 1'200'000, 1'100'000}) {
      add_iteration({begin, begin + duration});
      begin += duration;
    }
    timeline.source = "a test";
    timeline.device_name = "NVIDIA H200";
    analysis.by = IterationsBy::range;
    analysis.range = "step";
    analysis.duration = analysis.unrecorded = 1'100'000;
    analysis.busy = 500'000;
    analysis.utilisation = 0.45;
    analysis.jitter = 0.07;
    analysis.kernels = analysis.launches = 1;
    analysis.in_launches = 10'000;
    analysis.idle = {600'000, 0, 0, 0, 0};
    analysis.durations.histogram[9] = 3;
    analysis.durations.kernels = 3;
    analysis.durations.total = 1'500'000;
    analysis.durations.median = analysis.durations.longest = 500'000;
    analysis.regions.push_back({.name = "step", .entries = 1, .kernels = 1, .busy = 500'000, .idle = 100'000});
    analysis.waits.push_back({"cudaStreamSynchronize", "aten::item", 2, 30'000});
    add_decision();
  }

  void add_work(TimeSpan time, std::string_view name, std::int64_t stream = 7,
                DeviceWork::Kind kind = DeviceWork::Kind::kernel) {
    timeline.work.push_back({.time = time, .name = timeline.intern(name), .kind = kind, .stream = stream});
  }
  void add_call(TimeSpan time, std::string_view name, HostCall::Kind kind, std::int64_t thread = 1) {
    timeline.calls.push_back({.time = time, .name = timeline.intern(name), .kind = kind, .thread = thread});
  }
  void add_range(TimeSpan time, std::string_view name, HostRange::Kind kind = HostRange::Kind::annotation,
                 std::int64_t thread = 1) {
    timeline.ranges.push_back({.time = time, .name = timeline.intern(name), .kind = kind, .thread = thread});
  }

 private:
  void add_iteration(TimeSpan time) {
    add_range(time, "step");
    add_call({time.begin + 50'000, time.begin + 60'000}, "cudaLaunchKernel", HostCall::Kind::launch);
    analysis.gaps.push_back({.time = {time.begin, time.begin + 100'000}, .next = timeline.work.size(), .culprit = {}});
    add_work({time.begin + 100'000, time.begin + 600'000}, "void gemm<float, 4>(float const*)");
    Iteration& iteration = analysis.iterations.emplace_back();
    iteration.time = time;
    iteration.busy = 500'000;
    iteration.kernels = iteration.launches = 1;
  }

  void add_decision() {
    decision.verdict = GraphVerdict::graph;
    decision.headline = "Graph it: twice as fast.";
    decision.reasons = {"The device is busy 45 % of the time."};
    decision.obstacles = {"cudaStreamSynchronize: keep the loss on the device."};
    decision.scopes.resize(2);
    decision.scopes[0].scope = GraphScope::layers;
    decision.scopes[0].obstacle = "the layers differ";
    ScopePrediction& best = decision.scopes[1];
    best.low = 500'000;
    best.expected = 550'000;
    best.high = 640'000;
    best.speedup = 2;
    best.host_launches = 3;
    best.cpp = "FullIteration step(f, {.warmup = 3});";
    best.python = "step = FullIteration(f)";
    decision.best = 1;
  }
};

}  // namespace pianola::profiling
