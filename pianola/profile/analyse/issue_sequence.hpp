#pragma once
#include <pianola/profile/analyse/device_work.hpp>
#include <pianola/profile/analyse/issued.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace pianola::profiling {

/// What the host issued at once: one piece of work, or all of a graph.
struct IssuedItem {
  TimeSpan host;                 ///< The call; where no calls are known, and on a CPU, the work itself.
  TimeSpan device;               ///< From the first begin to the last end of its work.
  std::uint32_t symbol = 0;      ///< Equal where the same was issued: name and kind, or a graph of the same work.
  std::uint32_t weight = 1;      ///< Pieces of work.
  std::uint32_t module = 0;      ///< Number of the outermost module call that issued it; 0: none.
  bool optimizer_began = false;  ///< An optimizer's step began since the item before ...
  bool optimizer_ended = false;  ///< ... or ended: where no range names it, one of its kernels comes before.

  friend bool operator==(const IssuedItem&, const IssuedItem&) = default;
};

/// The work of a device in the order in which the host issued it, which streams at work side by side do not disturb.
///
/// Where less than 90 % of the work has a known call, the order in which it began. Copies to the host are left out
/// where there is other work: results are read now and then, and do not tell one iteration from another.
struct IssueSequence {
  std::vector<IssuedItem> items;
  std::uint32_t symbols = 0;  ///< How many there are; each is below.
  std::size_t optimizer_steps = 0;

  /// Time in which the host did not issue, or where no calls are known the device was idle, before an item.
  [[nodiscard]] Nanoseconds gap_before(std::size_t item) const {
    return item == 0 ? 0 : items[item].host.begin - items[item - 1].host.end;
  }
};

/// A hash, the sum of which over a set tells the set, whatever the order.
[[nodiscard]] std::uint64_t scattered(std::uint64_t value) noexcept;

/// Whether a kernel of this name belongs to an optimizer, as far as names tell: torch's foreach and fused ones.
[[nodiscard]] bool is_optimizers_kernel(std::string_view name);

[[nodiscard]] IssueSequence issue_sequence(const DeviceWorkList& list, const Issued& issued);

}  // namespace pianola::profiling
