#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/graph/memory_forecast.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// What graphs of a step would take that are captured one after the other, of one bucket each, and never run at once.
struct PIANOLA_API BucketForecast {
  c10::Device device = c10::Device(c10::kCPU);
  std::vector<std::string> names;          ///< Of the buckets.
  std::vector<MemoryForecast> buckets;     ///< Of each alone.
  std::uint64_t pools = 0;                 ///< Of pools of their own, all together.
  std::uint64_t shared = 0;                ///< Of one pool for all, made with plan_memory.
  std::uint64_t inputs = 0;                ///< Of static inputs that all graphs share: of each the largest.
  std::uint64_t copied = 0;                ///< The most that one of the captures copies aside.
  std::uint64_t executables = 0;           ///< About, of all.
  std::optional<std::uint64_t> free = {};  ///< What the driver has left for pools. Unknown on the CPU.
  std::uint64_t cached = 0;                ///< Unused in torch's allocator, outside of pools: for the copies alone.
  std::uint64_t returnable = 0;            ///< Of that, what torch.cuda.empty_cache() gives back.

  /// Whether captures into one pool that plans find room. Unknown where that is.
  [[nodiscard]] std::optional<bool> fits() const;
  /// Whether those into pools of their own do.
  [[nodiscard]] std::optional<bool> fits_apart() const;
  /// What is said of both.
  [[nodiscard]] std::string verdict() const;
  [[nodiscard]] Report report() const;
};

/// predict_memory() for each of several buckets, and what one pool takes that all their graphs share.
///
///     pianola::predict_buckets([&](std::size_t i) { model->forward(batches[i]); }, {"128", "256", "512"}, device);
///
/// What a bucket's last run leaves in use (results, gradients) lies in the pool until it is freed, and the graphs of other buckets lie
/// around it: keep what callers of the graphs would keep. What all free is shared; with expandable segments each graph has a region of its
/// own in the pool, and nothing is.
///
/// @param step    Called with the number of the bucket, from 0.
/// @param names   One for each bucket, in the order of the captures.
/// @param warmup  Runs before, of each bucket.
/// @param inputs  What each bucket's calls are given and graphs copy, for BucketForecast::inputs; empty: nothing.
/// @throws UsageError  There is no bucket, `warmup` is negative, or a capture is open.
/// @throws DeviceError, UnsupportedError, CaptureError  As predict_memory().
/// Whatever the step throws reaches the caller unchanged.
[[nodiscard]] PIANOLA_API BucketForecast predict_buckets(const std::function<void(std::size_t bucket)>& step,
                                                         const std::vector<std::string>& names, c10::Device device,
                                                         int warmup = 1,
                                                         const std::vector<std::vector<at::Tensor>>& inputs = {});

}  // namespace pianola
