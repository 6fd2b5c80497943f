#pragma once
#include <pianola/profile/timeline.hpp>

#include <string_view>

namespace pianola::profiling {

/// A call of CUDA's runtime or driver as it is written in a program: without the version and the marks of the
/// per-thread default stream that profilers add. "cudaMemcpy" of "cudaMemcpy_ptds_v7000".
[[nodiscard]] std::string_view without_version(std::string_view call) noexcept;

/// What a call of CUDA does, by its name, with or without version. Calls that are not in the table are `other`.
///
/// A copy counts by what its function promises: cudaMemcpy waits, cudaMemcpyAsync does not.
/// Threads: safe.
[[nodiscard]] HostCall::Kind call_kind(std::string_view call);

/// Whether the call gives the device work, and returns early: launches, of graphs too, copies and memsets.
[[nodiscard]] inline bool issues_work(const HostCall& call) noexcept {
  return call.kind == HostCall::Kind::launch || call.kind == HostCall::Kind::graph_launch ||
         call.kind == HostCall::Kind::copy;
}

/// Of the driver ("cuLaunchKernel"), and not of the runtime.
[[nodiscard]] bool is_driver_call(std::string_view call) noexcept;

}  // namespace pianola::profiling
