#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/cuda/fake_driver.hpp>
#include <pianola/cuda/topology.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::testing {

inline std::uintptr_t address_of(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(trace::address_of(tensor));
}

inline ByteSpan bytes_of(const at::Tensor& tensor) {
  return {address_of(tensor), address_of(tensor) + trace::span_bytes_of(tensor)};
}

/// Records a step on the CPU as if a GPU captured it: operations add nodes to a graph of a FakeDriver, one kernel with
/// the addresses of all their tensors unless on() says otherwise. Tensors stay alive, so that no address comes twice.
class FakeStep final : public trace::OpObserver {
 public:
  struct Call {
    std::vector<at::Tensor> inputs, outputs;
  };
  using Action = std::function<void(const Call&)>;

  /// What the operation of that name ("aten::mm") adds instead.
  void on(const std::string& name, Action action) { actions_[name] = std::move(action); }

  /// Adds a node behind the last one.
  CUgraphNode add(FakeDriver::Node node) {
    if (node.dependencies.empty() && !graph.nodes.empty()) node.dependencies = {{.from = last()}};
    const CUgraphNode handle = graph.add(std::move(node));
    (on_another_stream ? nodes_elsewhere_ : pending_nodes_).push_back(handle);
    return handle;
  }
  /// A kernel with these words as arguments, so many more of them zero.
  CUgraphNode kernel(std::vector<std::uintptr_t> words, const std::string& symbol = "a_kernel") {
    std::vector<std::uintptr_t>& block = blocks_of_words_.emplace_back(std::move(words));
    block.resize(block.size() + 2);
    const FakeDriver::Function& function = functions_.emplace_back(
        FakeDriver::Function{.symbol = symbol, .parameters = {{0, block.size() * sizeof(std::uintptr_t)}}});
    return add(kernel_node(function, block.data()));
  }
  /// A kernel whose arguments the driver does not tell.
  CUgraphNode unreadable_kernel() {
    return add(
        kernel_node(functions_.emplace_back(FakeDriver::Function{.symbol = "secret", .parameters = {}}), nullptr));
  }
  CUgraphNode fill(ByteSpan bytes) {
    FakeDriver::Node node{.type = CU_GRAPH_NODE_TYPE_MEMSET};
    node.memset = {.dst = bytes.begin, .pitch = 0, .value = 0, .elementSize = 1, .width = bytes.size(), .height = 1};
    return add(node);
  }
  CUgraphNode copy(ByteSpan from, std::uintptr_t to) {
    FakeDriver::Node node{.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    node.memcpy.srcMemoryType = node.memcpy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    node.memcpy.srcDevice = from.begin;
    node.memcpy.dstDevice = to;
    node.memcpy.WidthInBytes = from.size();
    node.memcpy.Height = node.memcpy.Depth = 1;
    return add(node);
  }
  void allocate(ByteSpan block) { pending_blocks_.push_back(block); }
  [[nodiscard]] CUgraphNode last() { return reinterpret_cast<CUgraphNode>(&graph.nodes.back()); }

  OpTrace record(const std::function<void()>& step) {
    TraceRecorder recorder({.new_nodes = [this]() -> std::span<const void* const> {
                              return given_nodes_ = std::exchange(pending_nodes_, {});
                            },
                            .new_nodes_everywhere = [this]() -> std::span<const void* const> {
                              given_nodes_ = std::exchange(pending_nodes_, {});
                              given_nodes_.insert(given_nodes_.end(), nodes_elsewhere_.begin(), nodes_elsewhere_.end());
                              nodes_elsewhere_.clear();
                              return given_nodes_;
                            },
                            .new_blocks = [this]() -> std::span<const ByteSpan> {
                              return given_blocks_ = std::exchange(pending_blocks_, {});
                            }});
    const trace::OpStream stream({this, &recorder});
    step();
    return recorder.take();
  }
  [[nodiscard]] GraphTopology topology() { return GraphTopology::read(graph.handle(), fake.table()); }

  void on_op_begin(const trace::OpSpan& op) override {
    for (const c10::IValue& value : op.inputs) {
      trace::for_each_tensor(value, [&](const at::Tensor& tensor) { calls_[op.number].inputs.push_back(tensor); });
    }
  }
  void on_op_end(const trace::OpSpan& op) override {
    Call& call = calls_[op.number];
    for (const c10::IValue& value : op.outputs) {
      trace::for_each_tensor(value, [&](const at::Tensor& tensor) { call.outputs.push_back(tensor); });
    }
    if (const auto action = actions_.find(op.info->name); action != actions_.end()) return action->second(call);
    if (op.info->is_view || op.info->is_empty) return;
    std::vector<std::uintptr_t> words;
    for (const at::Tensor& tensor : call.inputs) words.push_back(address_of(tensor));
    for (const at::Tensor& tensor : call.outputs) words.push_back(address_of(tensor));
    kernel(std::move(words));
  }

  FakeDriver fake;
  FakeDriver::Graph graph;
  bool on_another_stream = false;  ///< What is added now is, which the step's own does not show.

 private:
  FakeDriver::Node kernel_node(const FakeDriver::Function& function, void* block) {
    FakeDriver::Node node{.type = CU_GRAPH_NODE_TYPE_KERNEL};
    node.kernel.func = FakeDriver::as_function(const_cast<FakeDriver::Function&>(function));
    node.kernel.kernelParams = parameters_.emplace_back(std::array<void*, 1>{block}).data();
    return node;
  }

  std::map<std::string, Action> actions_;
  std::map<std::uint64_t, Call> calls_;
  std::deque<std::vector<std::uintptr_t>> blocks_of_words_;
  std::deque<FakeDriver::Function> functions_;
  std::deque<std::array<void*, 1>> parameters_;
  std::vector<const void*> pending_nodes_, nodes_elsewhere_, given_nodes_;
  std::vector<ByteSpan> pending_blocks_, given_blocks_;
};

}  // namespace pianola::testing
