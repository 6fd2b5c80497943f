#pragma once
#include <pianola/core/export.hpp>

#include <cstddef>
#include <string_view>

namespace pianola {

// Note [Graphs go before their process groups]
// A communicator of NCCL counts the graphs that hold its collectives, and waits for the last one when it is destroyed (NCCL's
// documentation, "Using NCCL with CUDA Graphs"): destroy_process_group() would wait for ever while a graph lives. So the
// graphs are dropped first. `import pianola` sees to that; a program in C++ calls drop_graphs_of_group().

/// Drops what is captured in all graphs of this process that communicate by this process group. Their next replay is refused; a
/// graphed step is captured anew, or runs eagerly.
///
/// @param name  c10d::ProcessGroup::getGroupName().
/// @return  How many there were.
/// @throws UsageError  Another thread replays one of them, which keeps what it has; all others are dropped.
PIANOLA_API std::size_t drop_graphs_of_group(std::string_view name);

}  // namespace pianola
