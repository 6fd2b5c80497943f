#pragma once
#include <pianola/profile/timeline.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace pianola::profiling {

/// A training of `iterations` iterations of 1000 kernels, each issued by a call inside two operations: 24 layers of 13
/// kernels forward and 25 backward, and 88 of an optimizer. As a profile of an eager program that the host limits.
class LargeTimeline {
 public:
  explicit LargeTimeline(std::size_t iterations) {
    const std::size_t pieces = 1000 * iterations;
    timeline_.work.reserve(pieces);
    timeline_.calls.reserve(pieces);
    timeline_.ranges.reserve(2 * pieces);
    launch_ = timeline_.intern("cudaLaunchKernel");
    for (std::size_t i = 0; i < iterations; ++i) add_iteration();
  }
  [[nodiscard]] const Timeline& timeline() const noexcept { return timeline_; }

 private:
  void add_iteration() {
    for (std::size_t layer = 0; layer < 24; ++layer) add_kernels("forward", 13, 1);
    for (std::size_t layer = 0; layer < 24; ++layer) add_kernels("backward", 25, 2);
    add_kernels("optimizer", 88, 1);
    time_ += 50'000;
  }
  void add_kernels(const std::string& part, std::size_t count, std::int64_t thread) {
    for (std::size_t i = 0; i < count; ++i) add_kernel(part + std::to_string(i), thread);
  }
  void add_kernel(const std::string& name, std::int64_t thread) {
    const NameId kernel = timeline_.intern(name);
    const std::array<NameId, 2> operations = {timeline_.intern("aten::" + name),
                                              timeline_.intern("aten::" + name + "_")};
    ++correlation_;
    for (const NameId operation : operations) {
      timeline_.ranges.push_back({{time_, time_ + 6000}, operation, HostRange::Kind::operation, 0, thread});
    }
    timeline_.calls.push_back({{time_ + 1000, time_ + 4000}, launch_, HostCall::Kind::launch, 0, thread, correlation_});
    timeline_.work.push_back({.time = {time_ + 5000, time_ + 9000}, .name = kernel, .correlation = correlation_});
    time_ += 7000;
  }

  Timeline timeline_;
  NameId launch_ = 0;
  Nanoseconds time_ = 0;
  std::uint64_t correlation_ = 0;
};

}  // namespace pianola::profiling
