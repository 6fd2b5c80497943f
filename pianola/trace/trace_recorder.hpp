#pragma once
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/op_trace.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola {

/// What a TraceRecorder records besides the operations themselves.
struct TraceRecorderOptions {
  bool call_sites = false;  ///< Where each operation was called from; 0.2 to 0.7 us an operation.
  /// How far the generator is that the step draws from; empty: random numbers are not counted.
  std::function<std::uint64_t()> random_position = {};
  /// Nodes that were added to the capturing graph since the last call; empty: no capture.
  std::function<std::span<const void* const>()> new_nodes = {};
  /// The same on all streams of the capture, where a collective begins and ends: it has streams of its own. Empty: as new_nodes.
  std::function<std::span<const void* const>()> new_nodes_everywhere = {};
  /// Memory that was allocated since the last call; empty: not recorded.
  std::function<std::span<const ByteSpan>()> new_blocks = {};
};

/// Writes an OpTrace from an OpStream.
class TraceRecorder final : public trace::OpObserver {
 public:
  explicit TraceRecorder(TraceRecorderOptions options = {});

  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  [[nodiscard]] const OpTrace& trace() const noexcept { return trace_; }
  [[nodiscard]] OpTrace take() noexcept { return std::move(trace_); }
  /// Nodes that no operation added: raw CUDA calls of the step between operations.
  [[nodiscard]] std::size_t foreign_nodes() const noexcept { return foreign_nodes_; }

 private:
  // An operation that has begun and not ended.
  struct Running {
    std::uint64_t number;
    std::uint64_t around;                 // OpSpan::around
    std::size_t index;                    // in the trace
    std::vector<const void*> nodes = {};  // added before it called another operation
    std::vector<ByteSpan> blocks = {};
  };

  // Whether all that runs are the operations around this one.
  [[nodiscard]] bool runs_alone(const trace::OpSpan& op) const;
  void settle(Running* running, bool everywhere);
  [[nodiscard]] std::span<const void* const> new_nodes(bool everywhere) const;
  void add_tensors(c10::ArrayRef<c10::IValue> values, const trace::OpSpan& op, bool results);
  void add_scalars(c10::ArrayRef<c10::IValue> inputs);
  std::uint32_t scope_index(std::span<const std::string> scopes);
  // An operation that has ended; nothing where its begin was not recorded.
  std::optional<Running> end_of(std::uint64_t number);

  TraceRecorderOptions options_;
  OpTrace trace_;
  std::vector<Running> running_;
  std::vector<std::string> last_scopes_;
  std::uint32_t last_scope_ = 0;
  std::size_t foreign_nodes_ = 0;
};

}  // namespace pianola
