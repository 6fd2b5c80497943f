#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstdint>

namespace pianola::profiling {

/// Of a process that was killed, the last records of each thread are missing, of one thread more than of another: what
/// is there would look like iterations without their forward pass. Leaves out what came after the first of its threads
/// falls silent, if that is about as much as a thread may lack. Work goes with the call that issued it. The timeline need
/// not be sorted.
///
/// @return  How much time that is; 0: nothing was left out.
Nanoseconds leave_out_uneven_end(Timeline& timeline, std::int32_t process);

}  // namespace pianola::profiling
