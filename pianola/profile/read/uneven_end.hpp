#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstdint>

namespace pianola::profiling {

/// When a process is killed, each thread loses a different amount of its last records, so the last iterations look as if
/// they had no forward pass. This leaves out what came after the first thread fell silent, if that is about as much as a
/// thread may lose. Work goes with the call that issued it. The timeline need not be sorted.
///
/// @return  How much time that is; 0: nothing was left out.
Nanoseconds leave_out_uneven_end(Timeline& timeline, std::int32_t process);

}  // namespace pianola::profiling
