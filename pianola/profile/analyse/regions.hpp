#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/analyse/host_threads.hpp>

#include <cstdint>
#include <map>
#include <vector>

namespace pianola::profiling {

/// What was issued within the ranges of each name, those nested inside included; most idle time first, at most 200.
/// A range inside another of its name counts once. Names without any work are left out.
[[nodiscard]] std::vector<Region> find_regions(const Timeline& timeline,
                                               const std::map<std::int64_t, HostThread>& threads,
                                               const std::vector<Iteration>& iterations);

}  // namespace pianola::profiling
