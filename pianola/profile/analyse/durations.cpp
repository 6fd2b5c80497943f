#include <pianola/profile/analyse/durations.hpp>

#include <pianola/profile/analyse/median.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace pianola::profiling {
namespace {

constexpr Nanoseconds kSmallKernel = 50'000;
constexpr Nanoseconds kLong = 1'000'000;

}  // namespace

std::size_t duration_bin(Nanoseconds duration) noexcept {
  const auto microseconds = static_cast<std::uint64_t>(std::max<Nanoseconds>(duration, 0)) / 1000;
  constexpr std::size_t kLast = std::tuple_size_v<decltype(DurationSummary::histogram)> - 1;
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(microseconds)), kLast);
}

DurationSummary summarize_durations(const DeviceWorkList& list, std::size_t first, std::size_t last) {
  DurationSummary summary;
  std::vector<Nanoseconds> durations;
  std::size_t small = 0;
  Nanoseconds in_long = 0;
  for (std::size_t i = first; i < last; ++i) {
    if (!is_kernel(list[i])) continue;
    const Nanoseconds duration = list[i].time.duration();
    durations.push_back(duration);
    ++summary.histogram[duration_bin(duration)];
    summary.total += duration;
    summary.longest = std::max(summary.longest, duration);
    if (duration < kSmallKernel) ++small;
    if (duration >= kLong) in_long += duration;
  }
  summary.kernels = durations.size();
  if (summary.kernels == 0) return summary;
  summary.share_small = static_cast<double>(small) / static_cast<double>(summary.kernels);
  if (summary.total > 0) summary.share_long = static_cast<double>(in_long) / static_cast<double>(summary.total);
  summary.median = median(std::move(durations));
  return summary;
}

}  // namespace pianola::profiling
