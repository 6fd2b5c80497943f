#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/timeline.hpp>

#include <optional>
#include <string_view>

namespace pianola::profiling {

/// @param analysis  With its device, its iterations and what they were found by.
[[nodiscard]] std::optional<MemoryUse> memory_use(const Timeline& timeline, const Analysis& analysis);

/// What to tell where a profile has nothing of the allocator.
inline constexpr std::string_view kMemoryUnknown =
    "the memory of a graph is unknown: the profile has no events of torch's allocator. Record with "
    "torch.profiler.profile(profile_memory=True), or with pianola.profile(step) from within the program; the recorder "
    "of "
    "`pianola profile` does not see the allocator. `pianola memory --scopes FILE.py:FUNCTION` tells it without a "
    "profile";

/// What to tell where a profile has the allocator's events, and nothing of what the device has left.
inline constexpr std::string_view kRoomUnknown =
    "whether a graph fits is unknown: the profile does not say what the device has left. "
    "`pianola memory --scopes FILE.py:FUNCTION` tells it on that device";

}  // namespace pianola::profiling
