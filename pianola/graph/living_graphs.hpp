#pragma once
#include <pianola/graph/account/graph_memory.hpp>

#include <c10/core/Device.h>

#include <functional>
#include <mutex>
#include <vector>

namespace pianola::graph {

/// The graphs of this process that hold a capture. Any thread may call.
class LivingGraphs {
 public:
  static LivingGraphs& of_this_process();

  /// @param memory  What it has.
  void add(const void* graph, c10::Device device, std::function<GraphMemory()> memory);
  /// Nothing where it was not added.
  void remove(const void* graph) noexcept;
  /// Of those on the device, in the order of their captures. What `memory` of one throws comes out.
  [[nodiscard]] std::vector<GraphMemory> memory_on(c10::Device device);

 private:
  struct One {
    const void* graph;
    c10::Device device;
    std::function<GraphMemory()> memory;
  };
  std::mutex mutex_;
  std::vector<One> all_;
};

}  // namespace pianola::graph
