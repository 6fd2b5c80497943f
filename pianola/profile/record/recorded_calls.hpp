#pragma once
#include <pianola/profile/record/activity_api.hpp>
#include <pianola/profile/timeline.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pianola::profiling {

/// An entry point of CUDA whose calls count, as CUPTI numbers it.
struct RecordedCall {
  bool driver;  ///< Of the driver's API, not the runtime's.
  CUpti_CallbackId id;
  HostCall::Kind kind;
  std::string name;  ///< Without the version of its signature: "cudaMemcpyAsync".
};

/// All that launch, copy, fill, or wait for a device: what a step's time on the host goes to. Others are not recorded,
/// since a record costs as much as a cheap call does. They are those whose names, which CUPTI tells, call_kind() knows:
/// so a new version of a signature needs nothing new here.
class RecordedCalls {
 public:
  explicit RecordedCalls(const ActivityApi& api);

  [[nodiscard]] std::span<const RecordedCall> all() const noexcept { return calls_; }
  /// nullptr: not one of them.
  [[nodiscard]] const RecordedCall* find(bool driver, CUpti_CallbackId id) const noexcept;

 private:
  void add(const ActivityApi& api, bool driver, CUpti_CallbackId id);

  std::vector<RecordedCall> calls_;
  // By CUPTI's numbers, since every record is looked up: the place in calls_, from 1. Of the runtime's, then the driver's.
  std::array<std::vector<std::uint16_t>, 2> places_;
};

/// Whether CUPTI is asked to record it. Not the runtime's launches of kernels: each ends in one of the driver's, which CUPTI
/// records where the runtime's is not; to watch both takes 0.3 us more of each launch (H200, CUDA 13).
[[nodiscard]] bool is_watched(const RecordedCall& call) noexcept;

}  // namespace pianola::profiling
