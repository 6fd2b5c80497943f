#pragma once
#include <pianola/profile/timeline.hpp>

#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

namespace pianola::profiling {

[[nodiscard]] inline Nanoseconds us(double microseconds) { return std::llround(microseconds * 1000); }

/// Writes a timeline by hand; all times are in microseconds.
///
///     TimelineBuilder t;
///     t.on_stream(7).kernel("gemm", 10, 5).launched(4, 3);    // runs from 10 to 15; the call from 4 to 7 issued it
///     t.annotation("forward", 3, 9);
///     Timeline timeline = t.build();
class TimelineBuilder {
 public:
  /// Where what follows happens. Begins in process 0, on device 0, stream 7, thread 1.
  TimelineBuilder& in_process(std::int32_t process) { return set(process_, process); }
  TimelineBuilder& on_device(std::int32_t device) { return set(device_, device); }
  TimelineBuilder& on_stream(std::int64_t stream) { return set(stream_, stream); }
  TimelineBuilder& on_thread(std::int64_t thread) { return set(thread_, thread); }

  TimelineBuilder& kernel(std::string_view name, double at, double for_us) {
    return work(DeviceWork::Kind::kernel, name, at, for_us);
  }
  TimelineBuilder& copy_in(double at, double for_us) {
    return work(DeviceWork::Kind::copy, "Memcpy HtoD (Pinned -> Device)", at, for_us);
  }
  TimelineBuilder& copy_out(double at, double for_us) {
    return work(DeviceWork::Kind::copy, "Memcpy DtoH (Device -> Pinned)", at, for_us);
  }
  TimelineBuilder& copy_within(double at, double for_us) {
    return work(DeviceWork::Kind::copy, "Memcpy DtoD (Device -> Device)", at, for_us);
  }
  TimelineBuilder& memset(double at, double for_us) {
    return work(DeviceWork::Kind::memset, "Memset (Device)", at, for_us);
  }
  /// Work of a CPU, on the current thread.
  TimelineBuilder& cpu_work(std::string_view name, double at, double for_us) {
    work(DeviceWork::Kind::operation, name, at, for_us);
    timeline_.work.back().device = -1;
    timeline_.work.back().stream = thread_;
    return *this;
  }

  /// The call that issued the last work.
  TimelineBuilder& launched(double at, double for_us = 3) {
    const DeviceWork::Kind kind = timeline_.work.back().kind;
    const bool is_kernel = kind == DeviceWork::Kind::kernel;
    const char* name = is_kernel                        ? "cudaLaunchKernel"
                       : kind == DeviceWork::Kind::copy ? "cudaMemcpyAsync"
                                                        : "cudaMemsetAsync";
    return issued(is_kernel ? HostCall::Kind::launch : HostCall::Kind::copy, name, at, for_us, 1);
  }
  /// The last work was a copy that the host waited for.
  TimelineBuilder& waited_for(double at, double for_us) {
    return issued(HostCall::Kind::synchronize, "cudaMemcpy", at, for_us, 1);
  }
  /// One launch of a graph that did the last `nodes` pieces of work.
  TimelineBuilder& launched_by_graph(std::uint64_t graph, std::size_t nodes, double at, double for_us = 5) {
    for (std::size_t i = 0; i < nodes; ++i) timeline_.work[timeline_.work.size() - 1 - i].graph = graph;
    return issued(HostCall::Kind::graph_launch, "cudaGraphLaunch", at, for_us, nodes);
  }

  TimelineBuilder& call(HostCall::Kind kind, std::string_view name, double at, double for_us) {
    timeline_.calls.push_back({span(at, for_us), timeline_.intern(name), kind, process_, thread_, 0});
    return *this;
  }
  TimelineBuilder& synchronize(double at, double for_us, std::string_view name = "cudaStreamSynchronize") {
    return call(HostCall::Kind::synchronize, name, at, for_us);
  }

  TimelineBuilder& annotation(std::string_view name, double at, double for_us) {
    return range(HostRange::Kind::annotation, name, at, for_us);
  }
  TimelineBuilder& operation(std::string_view name, double at, double for_us) {
    return range(HostRange::Kind::operation, name, at, for_us);
  }
  TimelineBuilder& backward(std::string_view name, double at, double for_us) {
    return range(HostRange::Kind::backward, name, at, for_us);
  }
  TimelineBuilder& module(std::string_view name, double at, double for_us) {
    return range(HostRange::Kind::module, name, at, for_us);
  }

  /// A block that the allocator hands out or takes back, by its address.
  TimelineBuilder& allocates(std::uint64_t address, std::int64_t bytes, double at) {
    allocated_ += static_cast<std::uint64_t>(bytes);
    timeline_.memory.push_back({.time = us(at),
                                .address = address,
                                .bytes = bytes,
                                .allocated = allocated_,
                                .reserved = 4096,
                                .process = process_,
                                .device = device_,
                                .thread = thread_});
    return *this;
  }
  TimelineBuilder& frees(std::uint64_t address, std::int64_t bytes, double at) {
    return allocates(address, -bytes, at);
  }

  [[nodiscard]] Timeline build() const {
    Timeline timeline = timeline_;
    timeline.sort();
    return timeline;
  }

 private:
  template <class T>
  TimelineBuilder& set(T& member, T value) {
    member = value;
    return *this;
  }
  [[nodiscard]] static TimeSpan span(double at, double for_us) { return {us(at), us(at) + us(for_us)}; }

  TimelineBuilder& work(DeviceWork::Kind kind, std::string_view name, double at, double for_us) {
    DeviceWork work;
    work.time = span(at, for_us);
    work.name = timeline_.intern(name);
    work.kind = kind;
    work.process = process_;
    work.device = device_;
    work.stream = stream_;
    timeline_.work.push_back(work);
    return *this;
  }
  TimelineBuilder& issued(HostCall::Kind kind, std::string_view name, double at, double for_us, std::size_t pieces) {
    call(kind, name, at, for_us);
    timeline_.calls.back().correlation = ++correlation_;
    for (std::size_t i = 0; i < pieces; ++i) timeline_.work[timeline_.work.size() - 1 - i].correlation = correlation_;
    return *this;
  }
  TimelineBuilder& range(HostRange::Kind kind, std::string_view name, double at, double for_us) {
    timeline_.ranges.push_back({span(at, for_us), timeline_.intern(name), kind, process_, thread_});
    return *this;
  }

  Timeline timeline_;
  std::int32_t process_ = 0;
  std::int32_t device_ = 0;
  std::int64_t stream_ = 7;
  std::int64_t thread_ = 1;
  std::uint64_t correlation_ = 0;
  std::uint64_t allocated_ = 1000;
};

}  // namespace pianola::profiling
