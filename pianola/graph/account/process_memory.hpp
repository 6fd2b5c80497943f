#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/graph/account/pool_memory.hpp>

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// Memory of a device outside of torch's allocator, and what took it.
struct WatchedMemory {
  std::string what;        ///< "context", "cuBLAS", "kernels", ...
  std::int64_t bytes = 0;  ///< By how much the driver had less when that was over.
  std::string first;       ///< The operation that took the first of it: "aten::mm, at model.py:12".
};

/// Who has what of a device's memory, in this process.
struct PIANOLA_API ProcessMemory {
  c10::Device device = c10::Device(c10::kCPU);
  std::optional<std::uint64_t> used = {};  ///< Of the device, as the driver says: by all processes. Unknown on the CPU.
  std::uint64_t total = 0;                 ///< That the device has.
  // Of torch's allocator, outside of pools.
  std::uint64_t tensors = 0;     ///< What somebody holds: parameters, states, inputs, workspaces.
  std::uint64_t workspaces = 0;  ///< Of these, cuBLAS's for graphs.
  std::uint64_t returnable =
      0;                     ///< What nobody holds, in whole segments or pages: torch.cuda.empty_cache() gives it back.
  std::uint64_t pieces = 0;  ///< What nobody holds, beside what somebody does.

  std::vector<PoolMemory> pools;       ///< Of Pianola's graphs.
  std::uint64_t other_pools = 0;       ///< Of torch's allocator, for others.
  ExecutableMemory executables = {};   ///< Of Pianola's graphs.
  std::vector<WatchedMemory> watched;  ///< What a MemoryWatch saw; nothing where there was none.

  /// What is in use and in none of these: of others, of who came before a watch, or took it while there was none.
  [[nodiscard]] std::int64_t rest() const;
  [[nodiscard]] Report report() const;
};

/// The account of now. On the CPU it has the pools alone.
/// @throws DeviceError  There is no such device.
/// Threads:  Any. Streams:  Waits for none; what other threads take meanwhile may be in one line and not in the sum.
[[nodiscard]] PIANOLA_API ProcessMemory process_memory(c10::Device device);

}  // namespace pianola
