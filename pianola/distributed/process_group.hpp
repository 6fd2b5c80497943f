#pragma once
#include <pianola/core/export.hpp>

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace pianola::distributed {

struct ProcessGroupOptions {
  /// How graphs, messages and functional collectives call the group; the same on all ranks, and no other living group's.
  std::string name = "pianola";
  /// How long a collective waits for other ranks before it fails.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// The process group of all processes that torchrun, or another launcher, has started: RANK and WORLD_SIZE say which of how many
/// this one is, MASTER_ADDR and MASTER_PORT where they meet. Without RANK and WORLD_SIZE it is a group of this process alone.
///
/// Tensors of a GPU communicate by NCCL, those of the CPU by Gloo. It is one of torch's process groups: a program that has made its
/// own needs none of this. Blocks until all ranks are here.
///
/// On a GPU, make its device the current one first (LOCAL_RANK); and at the end drop the graphs that communicate by the group
/// (drop_graphs_of_group()) and call its shutdown().
///
/// @param device  Of the tensors that will be communicated.
/// @throws UsageError        A variable is missing, or is no number in its range; or as make_process_group().
/// @throws UnsupportedError  As make_process_group().
/// Where ranks do not come, c10d's error reaches the caller.
[[nodiscard]] PIANOLA_API c10::intrusive_ptr<c10d::ProcessGroup> process_group_from_environment(
    c10::DeviceType device, const ProcessGroupOptions& options = {});

/// The same of ranks that meet in a store of your own.
///
/// @param rank  From 0; @param size  how many there are.
/// @throws UsageError        `rank` is not below `size`, there is no store, or a group of this name lives.
/// @throws UnsupportedError  Neither the CPU nor, in a build with CUDA, a GPU.
[[nodiscard]] PIANOLA_API c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    c10::DeviceType device, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
    const ProcessGroupOptions& options = {});

}  // namespace pianola::distributed
