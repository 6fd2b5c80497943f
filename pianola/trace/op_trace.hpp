#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/core/export.hpp>
#include <pianola/core/source_place.hpp>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace pianola {

namespace trace {
struct OpInfo;
class CallSite;
}  // namespace trace

/// One tensor as an operation saw it.
struct TensorRecord {
  const void* storage =
      nullptr;  ///< Identity of the memory; nullptr for sparse, nested and opaque tensors, and subclasses.
  const void* address = nullptr;  ///< First element.
  std::size_t span_bytes = 0;     ///< From there to the end of the last element that the view reaches.
  std::uint32_t shape = 0;        ///< Where its sizes, then its strides, stand; read them with OpTrace::sizes().
  std::uint32_t version = 0;      ///< Autograd's version counter at the call; 0 where the tensor has none.
  std::uint16_t rank = 0;
  std::int16_t argument = 0;  ///< Index of the argument or result.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Device device = c10::Device(c10::kCPU);
  bool made_in_step = false;  ///< Its memory was made by an earlier operation of the trace (or by this one).
  bool written = false;       ///< The operation writes it: a marked argument, a running statistic, a new result.
  bool number = false;        ///< A number of the host in a tensor's clothes.
};

/// One number among an operation's arguments; a list gives one record per entry. In `x * 0.5` the number comes as a
/// tensor that was made for it: both records are there, and TensorRecord::number is set.
struct ScalarRecord {
  std::int16_t argument = 0;
  std::variant<std::int64_t, double, bool> value;
};

/// One top-level ATen operation of a step, forward or backward.
struct OpRecord {
  const trace::OpInfo* info = nullptr;
  std::uint32_t first_input = 0, inputs = 0;  ///< Ranges; read them with OpTrace::inputs() and its like.
  std::uint32_t first_output = 0, outputs = 0;
  std::uint32_t first_scalar = 0, scalars = 0;
  std::uint32_t first_node = 0, nodes = 0;
  std::uint32_t first_block = 0, blocks = 0;
  std::uint32_t scope = 0;             ///< Index of its user scope; 0 is "none".
  std::int64_t sequence = -1;          ///< Autograd's number of a forward operation; -1: none.
  std::int64_t forward_sequence = -1;  ///< In backward: the number of the forward operation it belongs to.
  c10::StreamId stream = 0;            ///< Stream it ran on; 0 on the CPU.
  std::uint64_t random_numbers = 0;    ///< How far it advanced the device's default generator.
  bool backward = false;
  bool host_read = false;  ///< It needed a tensor's value on the host.
  /// Other work ran inside or beside it that its tensors do not show: of a tensor subclass, a dispatch mode, a hook on
  /// saved tensors, another thread.
  bool opaque = false;
  /// Place in OpTrace::ops() of the operation whose kernel for autograd called this one, which stands behind it though it
  /// may have run first; -1: none.
  std::int32_t around = -1;
};

/// The top-level ATen operations of one run of a step, in the order they were called. See Note [Which spans are
/// operations] in trace/op_info.cpp for what counts as one. Read only; holds no tensor alive.
class PIANOLA_API OpTrace {
 public:
  OpTrace();
  OpTrace(OpTrace&&) noexcept;
  OpTrace& operator=(OpTrace&&) noexcept;
  ~OpTrace();

  [[nodiscard]] std::span<const OpRecord> ops() const noexcept { return ops_; }
  /// "aten::add.Tensor".
  [[nodiscard]] const std::string& name(const OpRecord& op) const;
  [[nodiscard]] std::span<const TensorRecord> inputs(const OpRecord& op) const noexcept;
  [[nodiscard]] std::span<const TensorRecord> outputs(const OpRecord& op) const noexcept;
  [[nodiscard]] std::span<const ScalarRecord> scalars(const OpRecord& op) const noexcept;
  /// Handles (CUgraphNode) of the nodes that it added to the graph; empty outside a CUDA capture.
  [[nodiscard]] std::span<const void* const> nodes(const OpRecord& op) const noexcept;
  /// Memory that was allocated while it ran: results and scratch, also what it freed again; empty where not recorded.
  [[nodiscard]] std::span<const ByteSpan> blocks(const OpRecord& op) const noexcept;
  /// Names of the open user scopes, outermost first, joined by '/'.
  [[nodiscard]] const std::string& scope(const OpRecord& op) const;
  [[nodiscard]] std::span<const std::int64_t> sizes(const TensorRecord& tensor) const noexcept;
  [[nodiscard]] std::span<const std::int64_t> strides(const TensorRecord& tensor) const noexcept;
  /// Where it was called from: "train_step at loss.cpp:88"; a backward operation names its forward one. Empty where
  /// sites were not recorded. Slow (tens of ms).
  [[nodiscard]] std::string place(const OpRecord& op) const { return source(op).text(); }
  /// The same in its parts; a backward operation has the place of its forward one.
  [[nodiscard]] SourcePlace source(const OpRecord& op) const;
  /// Its call site as it was taken; nullptr where sites were not recorded.
  [[nodiscard]] const trace::CallSite* site(const OpRecord& op) const noexcept;
  /// The forward operation that a backward one belongs to; nullptr where there is none or it is not known.
  [[nodiscard]] const OpRecord* forward_of(const OpRecord& op) const noexcept;

 private:
  friend class TraceRecorder;
  std::vector<OpRecord> ops_;
  std::vector<TensorRecord> tensors_;
  std::vector<ScalarRecord> scalars_;
  std::vector<const void*> nodes_;
  std::vector<ByteSpan> blocks_;
  std::vector<std::int64_t> dims_;
  std::vector<std::string> scopes_ = {""};
  std::vector<trace::CallSite> sites_;  // one per operation, or none
};

}  // namespace pianola
