#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/analyse/host_threads.hpp>

#include <cstdint>
#include <map>
#include <vector>

namespace pianola::profiling {

/// The calls that waited, those of the same name in the same place together; most idle time first.
[[nodiscard]] std::vector<Wait> find_waits(const Timeline& timeline, const std::map<std::int64_t, HostThread>& threads,
                                           std::size_t iterations);

}  // namespace pianola::profiling
