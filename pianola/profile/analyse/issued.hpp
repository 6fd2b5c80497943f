#pragma once
#include <pianola/profile/analyse/device_work.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pianola::profiling {

/// Which call of the host issued which work, by correlation.
///
/// Work of a graph was issued by the call that launched the graph. Of calls with one correlation, as a runtime's and the
/// driver's inside it, the outer one counts and the inner ones are `kInner`.
class Issued {
 public:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();           ///< No such call or work.
  static constexpr std::uint32_t kElsewhere = std::numeric_limits<std::uint32_t>::max() - 1;  ///< Another device's.
  static constexpr std::uint32_t kInner = std::numeric_limits<std::uint32_t>::max() - 2;      ///< Part of another call.

  explicit Issued(const DeviceWorkList& list);

  /// The index in Timeline::calls of the call that issued the work at a position of the list; kNone: unknown.
  [[nodiscard]] std::uint32_t call_of(std::size_t position) const { return call_of_[position]; }
  /// The position of the first work that a call issued, or kNone, kElsewhere, kInner.
  [[nodiscard]] std::uint32_t first_work_of(std::size_t call) const { return first_work_of_[call]; }
  /// The call that issued the work at a position; null: unknown.
  [[nodiscard]] const HostCall* call(std::size_t position) const {
    return call_of_[position] == kNone ? nullptr : &(*calls_)[call_of_[position]];
  }
  /// How much of the work has a call, 0 to 1.
  [[nodiscard]] double share_known() const noexcept { return share_known_; }

 private:
  const std::vector<HostCall>* calls_;
  std::vector<std::uint32_t> call_of_;
  std::vector<std::uint32_t> first_work_of_;
  double share_known_ = 0;
};

}  // namespace pianola::profiling
