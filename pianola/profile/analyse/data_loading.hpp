#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstdint>
#include <string_view>
#include <vector>

namespace pianola::profiling {

/// Whether a range of this name loads data: torch's "enumerate(DataLoader)#...__next__", or an annotation such as
/// "data_loading", "load batch", "next_batch".
[[nodiscard]] bool loads_data(std::string_view name, HostRange::Kind kind);

/// When any thread of a process was loading data; apart and in order.
[[nodiscard]] std::vector<TimeSpan> data_loading_times(const Timeline& timeline, std::int32_t process);

}  // namespace pianola::profiling
