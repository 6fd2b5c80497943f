#pragma once
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::graph {

/// The captured graphs of this process that communicate. See Note [Graphs go before their process groups].
class GroupGraphs {
 public:
  static GroupGraphs& of_this_process();

  /// @param drop  Drops what is captured; it may call remove().
  /// @param pool  That it was captured into.
  void add(const void* graph, std::vector<std::string> groups, const void* pool, std::function<void()> drop);
  void remove(const void* graph) noexcept;
  std::size_t drop_of(std::string_view group);
  [[nodiscard]] bool any_in(const void* pool);

 private:
  struct One {
    const void* graph;
    std::vector<std::string> groups;
    const void* pool;
    std::function<void()> drop;
  };

  [[nodiscard]] bool holds(const void* graph) const;

  std::recursive_mutex mutex_;  // a graph that ends in another thread waits until it was dropped
  std::vector<One> all_;
};

}  // namespace pianola::graph
