#pragma once
#include <pianola/profile/timeline.hpp>

#include <cupti_callbacks.h>

#include <span>

namespace pianola::profiling {

/// An entry point of CUDA whose calls count, as CUPTI numbers it.
struct RecordedCall {
  bool driver;  ///< Of the driver's API, not the runtime's.
  CUpti_CallbackId id;
  HostCall::Kind kind;
  const char* name;  ///< Without the version of its signature: "cudaMemcpyAsync".
};

/// All that launch, copy, fill, or wait for a device: what a step's time on the host goes to. Others are not recorded,
/// since a record costs as much as a cheap call does.
[[nodiscard]] std::span<const RecordedCall> recorded_calls() noexcept;

/// Whether CUPTI is asked to record it. Not the runtime's launches of kernels: each ends in one of the driver's, which CUPTI
/// records where the runtime's is not; to watch both takes 0.3 us more of each launch (H200, CUDA 13).
[[nodiscard]] bool is_watched(const RecordedCall& call) noexcept;

/// nullptr: not one of them.
[[nodiscard]] const RecordedCall* find_call(bool driver, CUpti_CallbackId id) noexcept;

}  // namespace pianola::profiling
