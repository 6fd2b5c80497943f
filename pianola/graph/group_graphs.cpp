#include <pianola/graph/group_graphs.hpp>

#include <pianola/graph/process_groups.hpp>

#include <algorithm>
#include <utility>

namespace pianola {

std::size_t drop_graphs_of_group(std::string_view name) { return graph::GroupGraphs::of_this_process().drop_of(name); }

namespace graph {

GroupGraphs& GroupGraphs::of_this_process() {
  static auto* const graphs = new GroupGraphs();  // graphs may end after static objects do
  return *graphs;
}

void GroupGraphs::add(const void* graph, std::vector<std::string> groups, std::function<void()> drop) {
  const std::lock_guard lock(mutex_);
  all_.push_back({.graph = graph, .groups = std::move(groups), .drop = std::move(drop)});
}

void GroupGraphs::remove(const void* graph) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [&](const One& one) { return one.graph == graph; });
}

std::size_t GroupGraphs::drop_of(std::string_view group) {
  const std::lock_guard lock(mutex_);
  std::size_t dropped = 0;
  const auto is_of_group = [&](const One& one) {
    return std::find(one.groups.begin(), one.groups.end(), group) != one.groups.end();
  };
  for (auto one = all_.begin(); (one = std::find_if(all_.begin(), all_.end(), is_of_group)) != all_.end(); ++dropped) {
    const std::function<void()> drop = one->drop;
    const void* const graph = one->graph;
    drop();
    remove(graph);
  }
  return dropped;
}

}  // namespace graph
}  // namespace pianola
