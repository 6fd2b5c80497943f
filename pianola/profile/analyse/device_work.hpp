#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola::profiling {

/// The work of one device that one process gave it, in the order in which it began. Borrows the timeline.
struct DeviceWorkList {
  const Timeline* timeline = nullptr;
  std::int32_t process = 0;
  std::int32_t device = 0;
  std::vector<std::size_t> order;  ///< Indexes in Timeline::work.

  [[nodiscard]] std::size_t size() const noexcept { return order.size(); }
  [[nodiscard]] const DeviceWork& operator[](std::size_t position) const { return timeline->work[order[position]]; }
  /// Whether it is a profile of CPU work: what is issued runs at once, on the thread that issues it.
  [[nodiscard]] bool on_cpu() const noexcept { return device < 0; }
};

/// The work of a process and a device. Where they are left open (-1, -2) the pair with most pieces of work is taken, of
/// pairs with equally many the lowest numbers; a CPU only where no GPU worked.
/// @throws UsageError  There is no work at all, or none of that process or device.
[[nodiscard]] DeviceWorkList choose_device(const Timeline& timeline, std::int32_t process, std::int32_t device);

enum class CopyDirection : std::uint8_t { to_device, to_host, other };

/// Between host and device, told by the name ("Memcpy HtoD (Pinned -> Device)"); `other` for all that is no such copy.
[[nodiscard]] CopyDirection copy_direction(const Timeline& timeline, const DeviceWork& work);

/// Work that counts as a kernel: of a GPU its kernels, of a CPU its operations.
[[nodiscard]] constexpr bool is_kernel(const DeviceWork& work) noexcept {
  return work.kind == DeviceWork::Kind::kernel || work.kind == DeviceWork::Kind::operation;
}

/// The first position of a list whose work begins at `time` or later.
[[nodiscard]] std::size_t position_at(const DeviceWorkList& list, Nanoseconds time);

/// What the spans cover together, apart and in order.
[[nodiscard]] std::vector<TimeSpan> united(std::vector<TimeSpan> spans);

/// How much of `within` spans that lie apart and in order cover.
[[nodiscard]] Nanoseconds covered(std::span<const TimeSpan> apart, TimeSpan within);

}  // namespace pianola::profiling
