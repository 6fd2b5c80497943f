#pragma once
#include <pianola/audit/report.hpp>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <functional>
#include <optional>

namespace pianola::auditing {

/// How long one run of a step takes when it follows another at once.
struct BusyTime {
  std::chrono::duration<double> host{};    ///< Until the host has enqueued all work.
  std::chrono::duration<double> device{};  ///< From the end of the run before to the end of this one.
};

/// Takes both times of work between start() and stop(), on the current stream. Waits for the device in time() only.
class BusyTimer {
 public:
  void start(c10::cuda::CUDAStream stream);
  void stop(c10::cuda::CUDAStream stream);
  /// Of the last work; zeros before the first.
  [[nodiscard]] BusyTime time();

 private:
  at::cuda::CUDAEvent begin_{cudaEventDefault}, end_{cudaEventDefault};  // with times, which others are made without
  std::chrono::steady_clock::time_point started_;
  std::chrono::duration<double> host_{};
  bool stopped_ = false;
};

/// PG1204 where the device is busy all the time; see Note [When a step is bound by the device].
[[nodiscard]] std::optional<Finding> gpu_bound(const BusyTime& time);

/// Runs `step` twice on `stream`, the current one, and takes the time of the second run. The host waits for the device,
/// before and after. What `step` throws reaches the caller.
[[nodiscard]] BusyTime measure_busy_time(const std::function<void()>& step, c10::cuda::CUDAStream stream);

}  // namespace pianola::auditing
