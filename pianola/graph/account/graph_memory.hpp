#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/graph/account/memory_user.hpp>
#include <pianola/graph/account/pool_memory.hpp>
#include <pianola/memory/show/picture.hpp>

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pianola {

/// What a captured graph has of a device's memory.
struct PIANOLA_API GraphMemory {
  c10::Device device = c10::Device(c10::kCPU);
  std::uint64_t number = 0;  ///< Of memory_of_graphs(): of its capture in this process, from 1.
  PoolMemory pool;           ///< Its pool, with what other graphs have there.
  std::size_t own = 0;       ///< Bytes of the pool that its replays write, or its results lie in.
  std::size_t shared = 0;    ///< Of these, bytes that other graphs of the pool have as well.
  std::size_t planned = 0;   ///< Of the pool, laid out by plans; a region that graphs share counts in full.
  std::size_t inputs = 0;    ///< Of the tensors of CaptureOptions::inputs.
  std::size_t shared_inputs =
      0;                     ///< Of these, in memory_of_graphs(): bytes that inputs of earlier captures have as well.
  std::size_t retained = 0;  ///< Of tensors from outside that it keeps alive, parameters and inputs among them.
  std::size_t lane_workspaces = 0;  ///< Of cuBLAS, for lanes (CaptureOptions::branches).
  std::size_t kept_for_lanes = 0;   ///< Most bytes of the pool that were free at a time, and kept from reuse for lanes.
  ExecutableMemory executable = {};  ///< Nothing where another graph that uses it counts it.
  bool shares_executable = false;    ///< Whether other graphs use it, too.

  // Of the recording, in whole units of 512 bytes. Nothing with `trace` off.
  std::size_t blocks = 0;           ///< That it was handed out.
  std::uint64_t handed_out = 0;     ///< Bytes of all of them.
  std::uint64_t at_most = 0;        ///< In use at a time.
  std::uint64_t left = 0;           ///< In use when it was over.
  std::string peak_place;           ///< The operation in which most was in use.
  std::vector<MemoryUser> at_peak;  ///< The largest first.
  memory::Picture
      picture;  ///< Blocks where they lie in the pool. On the CPU, where the heap has no order, where a plan puts them.

  [[nodiscard]] Report report() const;
  /// A page with the picture: who lives when, and where.
  [[nodiscard]] std::string to_html() const { return memory::to_html(picture); }
};

/// Of each captured graph on the device, those inside of callables too.
/// @throws UsageError  A call of one of them is running.
/// Threads:  Any, while no other thread calls one of the graphs.
[[nodiscard]] PIANOLA_API std::vector<GraphMemory> memory_of_graphs(c10::Device device);

}  // namespace pianola
