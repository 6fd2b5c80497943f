#include <pianola/graph/account/pool_memory.hpp>

#include <utility>

namespace pianola {

void PoolGraphs::add(const void* graph, Executables& executables) {
  const std::lock_guard lock(mutex_);
  all_[graph] = {.executables = &executables};
}

void PoolGraphs::set(const void* graph, ExecutableMemory executable) {
  const std::lock_guard lock(mutex_);
  all_[graph].memory = executable;
}

void PoolGraphs::add_memory(const void* graph, ExecutableMemory more) {
  const std::lock_guard lock(mutex_);
  if (const auto one = all_.find(graph); one != all_.end()) one->second.memory += more;
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
  for (const auto& [graph, one] : all_) sum += one.memory;
  return sum;
}

void PoolGraphs::drop_executables() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [graph, one] : all_) one.are_dropped = one.executables != nullptr;
  drop_all();
}

void PoolGraphs::drop_all() noexcept {
  for (auto& [graph, one] : all_) {
    if (!one.are_dropped) continue;
    one.executables->drop_executables();
    one.memory = {};
  }
}

void PoolGraphs::make_executables() {
  const std::lock_guard lock(mutex_);
  try {
    for (auto& [graph, one] : all_) {
      if (one.are_dropped) one.memory = one.executables->make_executables();
    }
  } catch (...) {
    drop_all();
    throw;
  }
  for (auto& [graph, one] : all_) one.are_dropped = false;
}

void PoolGraphs::tell_of_sleep(const void* who, std::function<void()> goes_to_sleep) {
  const std::lock_guard lock(mutex_);
  told_of_sleep_[who] = std::move(goes_to_sleep);
}

void PoolGraphs::forget_sleep_of(const void* who) noexcept {
  const std::lock_guard lock(mutex_);
  told_of_sleep_.erase(who);
}

void PoolGraphs::go_to_sleep() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [who, goes_to_sleep] : told_of_sleep_) goes_to_sleep();
}

}  // namespace pianola
