#include <pianola/graph/group_graphs.hpp>

#include <pianola/distributed/agreement.hpp>
#include <pianola/distributed/group_clock.hpp>
#include <pianola/distributed/rank_vote.hpp>
#include <pianola/graph/hang_watch.hpp>
#include <pianola/graph/process_groups.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace pianola {

std::size_t drop_graphs_of_group(std::string_view name) {
  graph::HangWatch::of_this_process().forget(name);
  distributed::Agreement::of_this_process().forget(name);
  distributed::GroupClock::of_this_process().forget(name);
  distributed::RankVote::of_this_process().forget(name);
  return graph::GroupGraphs::of_this_process().drop_of(name);
}

namespace graph {

GroupGraphs& GroupGraphs::of_this_process() {
  static auto* const graphs = new GroupGraphs();  // graphs may end after static objects do
  return *graphs;
}

void GroupGraphs::add(const void* graph, const PoolState* pool, std::vector<std::string> groups,
                      std::optional<std::vector<std::uintptr_t>> buffers, std::function<void()> drop) {
  const std::lock_guard lock(mutex_);
  all_.push_back({.graph = graph,
                  .pool = pool,
                  .groups = std::move(groups),
                  .buffers = std::move(buffers),
                  .drop = std::move(drop)});
}

std::vector<std::string> GroupGraphs::groups_of(const PoolState& pool) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> groups;
  for (const One& one : all_) {
    if (one.pool != &pool) continue;
    for (const std::string& group : one.groups) {
      if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    }
  }
  return groups;
}

bool GroupGraphs::any_uses(const std::function<bool(std::uintptr_t address)>& lies_there) {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(
      all_, [&](const One& one) { return !one.buffers || std::ranges::any_of(*one.buffers, lies_there); });
}

void GroupGraphs::remove(const void* graph) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [&](const One& one) { return one.graph == graph; });
}

bool GroupGraphs::holds(const void* graph) const {
  return std::any_of(all_.begin(), all_.end(), [&](const One& one) { return one.graph == graph; });
}

std::size_t GroupGraphs::drop_of(std::string_view group) {
  const std::lock_guard lock(mutex_);
  const auto end = std::stable_partition(all_.begin(), all_.end(), [&](const One& one) {
    return std::find(one.groups.begin(), one.groups.end(), group) != one.groups.end();
  });
  const std::vector<One> its(all_.begin(), end);
  std::size_t dropped = 0;
  std::exception_ptr failure;
  for (const One& one : its) {
    if (!holds(one.graph)) continue;  // it went with what another one held
    try {
      one.drop();
      ++dropped;
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
  return dropped;
}

}  // namespace graph
}  // namespace pianola
