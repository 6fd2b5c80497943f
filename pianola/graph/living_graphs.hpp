#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/trace/block_log.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace pianola::graph {

// Note [Accounts in two parts]
// To name the lines of a step takes Python's interpreter, which may free a graph of its own accord, or let another thread do so. So what
// a graph has is taken under locks, without a word of it, and described when they are open again.

/// What a graph has, and what is needed to describe it.
struct AccountedGraph {
  GraphMemory memory;
  std::vector<trace::StepBlock> blocks = {};
  std::shared_ptr<const OpTrace> trace = {};  ///< nullptr: there is none.
  std::vector<ByteSpan> segments = {};        ///< Of its pool.
  std::vector<ByteSpan> inputs = {};          ///< Where the tensors of CaptureOptions::inputs lie.
};
/// With its lines and its picture. Runs Python: hold no lock.
[[nodiscard]] GraphMemory described(AccountedGraph graph);

/// The graphs of this process that hold a capture. Any thread may call.
class LivingGraphs {
 public:
  static LivingGraphs& of_this_process();

  /// @param account  What it has; nullopt in a forked child.
  void add(const void* graph, c10::Device device, std::function<std::optional<AccountedGraph>()> account);
  /// Nothing where it was not added.
  void remove(const void* graph) noexcept;
  /// Of those on the device, in the order of their captures. What `account` of one throws comes out.
  [[nodiscard]] std::vector<AccountedGraph> on(c10::Device device);

 private:
  struct One {
    const void* graph;
    std::uint64_t number;
    c10::Device device;
    std::function<std::optional<AccountedGraph>()> account;
  };
  std::mutex mutex_;
  std::vector<One> all_;
  std::uint64_t captures_ = 0;
};

}  // namespace pianola::graph
