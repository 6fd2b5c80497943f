#pragma once
#include <pianola/core/export.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace pianola::memory {

/// What is left of a device's memory. Bytes.
struct FreeMemory {
  std::uint64_t of_driver = 0;   ///< What the driver has, and torch may take of it.
  std::uint64_t cached = 0;      ///< What torch's allocator holds in reserve outside of pools, in pieces perhaps.
  std::uint64_t returnable = 0;  ///< Of that, whole segments and pages, which torch.cuda.empty_cache() gives back.
};

/// What a capture takes of it. Bytes.
struct CaptureMemory {
  std::uint64_t of_driver = 0;  ///< For as long as the graphs live: pools, which start empty, and executables.
  std::uint64_t copies = 0;     ///< Of torch's allocator, outside of pools: copies aside, static inputs.
};

/// Whether a capture finds room: the driver's part in what that has left, the copies in what torch holds as well.
[[nodiscard]] PIANOLA_API bool fits(const CaptureMemory& capture, const FreeMemory& left);
/// The same once torch.cuda.empty_cache() was called.
[[nodiscard]] PIANOLA_API bool would_fit(const CaptureMemory& capture, const FreeMemory& left);

/// "a capture takes 3.1 GiB of the driver and 96.0 MiB for copies, and the driver has 2.0 GiB left"
/// @param left  Nothing: it is unknown, and nothing is said of it.
[[nodiscard]] PIANOLA_API std::string room_numbers(const CaptureMemory& capture, const std::optional<FreeMemory>& left);
/// "It fits: ...", "It does not fit yet: ...", "It does not fit: ...", with the numbers.
[[nodiscard]] PIANOLA_API std::string room_verdict(const CaptureMemory& capture, const FreeMemory& left);

}  // namespace pianola::memory
