#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {
class PoolState;
}

namespace pianola::graph {

/// The captured graphs of this process that communicate. See Note [Graphs go before their process groups].
class GroupGraphs {
 public:
  static GroupGraphs& of_this_process();

  /// @param drop  Drops what is captured; it may call remove().
  /// @param pool  Of the graph, which keeps it.
  /// @param buffers  Of the tensors that it sends and receives, the begin of each; nullopt: nobody knows.
  void add(const void* graph, const PoolState* pool, std::vector<std::string> groups,
           std::optional<std::vector<std::uintptr_t>> buffers, std::function<void()> drop);
  void remove(const void* graph) noexcept;
  std::size_t drop_of(std::string_view group);
  /// Whether any of them sends or receives what lies there, or may do so.
  [[nodiscard]] bool any_uses(const std::function<bool(std::uintptr_t address)>& lies_there);
  /// By which graphs of the pool communicate, each once.
  [[nodiscard]] std::vector<std::string> groups_of(const PoolState& pool);

 private:
  struct One {
    const void* graph;
    const PoolState* pool;
    std::vector<std::string> groups;
    std::optional<std::vector<std::uintptr_t>> buffers;
    std::function<void()> drop;
  };

  [[nodiscard]] bool holds(const void* graph) const;

  std::recursive_mutex mutex_;  // a graph that ends in another thread waits until it was dropped
  std::vector<One> all_;
};

}  // namespace pianola::graph
