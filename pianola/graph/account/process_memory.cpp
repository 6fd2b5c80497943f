#include <pianola/graph/account/process_memory.hpp>

#include <pianola/graph/device_check.hpp>
#include <pianola/graph/pool_state.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/device_account.hpp>
#endif

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

namespace pianola {
namespace {

std::int64_t as_signed(std::uint64_t bytes) { return static_cast<std::int64_t>(bytes); }

void add_facts(Report& report, const ProcessMemory& memory) {
  report.fact("used_bytes", "in use, as the driver says", *memory.used, "bytes")
      .fact("total_bytes", "that there is", memory.total, "bytes")
      .fact("tensor_bytes", "tensors outside of graphs' pools", memory.tensors, "bytes")
      .fact("workspace_bytes", "of these, workspaces of graphs", memory.workspaces, "bytes")
      .fact("returnable_bytes", "unused, empty_cache() gives it back", memory.returnable, "bytes")
      .fact("piece_bytes", "unused, in pieces", memory.pieces, "bytes")
      .fact("other_pool_bytes", "pools of others", memory.other_pools, "bytes")
      .fact("executable_bytes", "executables of graphs", memory.executables.device, "bytes")
      .fact("executable_host_bytes", "executables, on the host", memory.executables.host, "bytes")
      .fact("rest_bytes", memory.watched.empty() ? "context, libraries, kernels: nobody watched" : "not accounted for",
            memory.rest(), "bytes");
}

}  // namespace

std::int64_t ProcessMemory::rest() const {
  if (!used) return 0;
  std::uint64_t known = tensors + returnable + pieces + other_pools + executables.device;
  for (const PoolMemory& pool : pools) known += pool.is_asleep ? 0 : pool.bytes;
  std::int64_t rest = as_signed(*used) - as_signed(known);
  for (const WatchedMemory& one : watched) rest -= one.bytes;
  return rest;
}

Report ProcessMemory::report() const {
  Report report("Memory of a device");
  report.fact("device", "device", device.str());
  if (used) add_facts(report, *this);
  ReportTable rows("pools", "Pools of graphs",
                   {{"pool"},
                    {"graphs"},
                    {"bytes", "bytes", "bytes"},
                    {"held", "held", "bytes"},
                    {"scratch", "scratch", "bytes"},
                    {"fragments", "fragments", "bytes"},
                    {"executables", "executables", "bytes"},
                    {"is"}});
  for (const PoolMemory& pool : pools) {
    rows.row({fmt::format("({}, {})", pool.id.first, pool.id.second), pool.graphs, pool.bytes, pool.held, pool.scratch,
              pool.fragments, pool.executables.device, pool.is_asleep ? "asleep" : "awake"});
  }
  report.table(std::move(rows));
  ReportTable takers("watched", "Outside of torch's allocator",
                     {{"what"}, {"bytes", "bytes", "bytes"}, {"first taken in"}});
  for (const WatchedMemory& one : watched) takers.row({one.what, one.bytes, one.first});
  if (!watched.empty()) report.table(std::move(takers));
  return report;
}

ProcessMemory process_memory(c10::Device any_device) {
  ProcessMemory memory;
  memory.device = graph::usable_device(any_device);
  for (const std::shared_ptr<PoolState>& pool : living_pools()) {
    if (pool->device() != memory.device) continue;
    PoolMemory one = pool->memory();
    if (one.bytes == 0 && one.graphs == 0) continue;
    memory.executables.device += one.executables.device;
    memory.executables.host += one.executables.host;
    memory.pools.push_back(one);
  }
#if PIANOLA_WITH_CUDA
  if (memory.device.is_cuda()) graph::account_of_device(memory);
#endif
  return memory;
}

}  // namespace pianola
