#include <pianola/graph/account/pool_memory.hpp>

namespace pianola {

void PoolGraphs::set(const void* graph, ExecutableMemory executable) {
  const std::lock_guard lock(mutex_);
  all_[graph] = executable;
}

void PoolGraphs::remove(const void* graph) noexcept {
  const std::lock_guard lock(mutex_);
  all_.erase(graph);
}

std::size_t PoolGraphs::count() const {
  const std::lock_guard lock(mutex_);
  return all_.size();
}

ExecutableMemory PoolGraphs::executables() const {
  const std::lock_guard lock(mutex_);
  ExecutableMemory sum;
  for (const auto& [graph, executable] : all_) {
    sum.device += executable.device;
    sum.host += executable.host;
  }
  return sum;
}

}  // namespace pianola
