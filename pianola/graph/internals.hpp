#pragma once
#include <pianola/core/export.hpp>

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace pianola {

/// Something inside torch that Pianola builds on and that no compiler checks, after it was tried.
struct Internal {
  std::string name;      ///< "random numbers of graphs".
  std::string used_for;  ///< What would be wrong without.
  std::string trouble;   ///< What torch did instead, or what was thrown; empty: it is as Pianola needs it.
  bool tried = true;     ///< Whether it could be: not where somebody's allocator stands in front of torch's.
};

/// Tries each of them on a device, on a thread of its own: what the calling thread has set, draws or records is not touched. On a
/// GPU it starts CUDA and cuBLAS, and takes about 100 MB there for as long as it runs.
///
/// Those whose failure would show in wrong numbers are also tried before the first capture on a device, once for each build of torch
/// and of Pianola and each driver: that it went well is kept in $XDG_CACHE_HOME/pianola, or ~/.cache/pianola. Where one has moved, captures
/// throw UnsupportedError. One that throws, as for want of memory, stands in no capture's way, and is tried again by the next process.
///
/// @throws DeviceError, UnsupportedError  As Graph's constructor. DeviceError also where no thread can be started, or the device cannot
///                                        be used.
[[nodiscard]] PIANOLA_API std::vector<Internal> check_internals(c10::Device device);

}  // namespace pianola
