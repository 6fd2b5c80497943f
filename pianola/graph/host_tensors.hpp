#pragma once
#include <pianola/core/error.hpp>
#include <pianola/graph/offence.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <optional>

namespace pianola::graph {

/// Which kinds of device a call's arguments name: those of its tensors, and those that it is given.
struct DeviceKinds {
  bool cpu = false;
  bool other = false;

  [[nodiscard]] static DeviceKinds of(c10::ArrayRef<c10::IValue> values);
};

// Note [Tensors of the CPU in a step of another device]
// A graph of a GPU holds the GPU's work. A number that lies on the CPU becomes an argument of a kernel, and what the step
// computes with tensors of the CPU it computes once: replays see neither a new value nor do they write one. What such a
// graph was captured with is therefore compared before each replay where the promise is eager's result (OutsideGuard), and
// a step that writes memory of the CPU stays eager. A copy between the two is another matter: it is in the graph, from and
// to pinned memory, and any other copy breaks the capture. Numbers that torch turned into tensors in the step itself are not
// such tensors: see Note [Numbers that torch turns into tensors] in trace/host_numbers.hpp.

/// Notes the tensors of the CPU from outside the step that it computes with.
class HostTensors final : public trace::OpObserver {
 public:
  /// So many bytes of them are compared before each replay.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 10;

  [[nodiscard]] trace::OpInterest interest() const override { return {.host_numbers = true}; }
  void on_op_begin(const trace::OpSpan& op) override;

  /// Whether an operation computed with this tensor of the CPU.
  [[nodiscard]] bool computes_with(const c10::TensorImpl& tensor) const { return read_.count(&tensor) != 0; }
  /// Why no graph of another device can stand for the step.
  [[nodiscard]] std::optional<Diagnosis> obstacle() const;

 private:
  void note(const trace::OpSpan& op, const at::Tensor& tensor, bool written);

  ska::flat_hash_set<const c10::TensorImpl*> read_;
  std::size_t bytes_ = 0;  // of those
  std::optional<OffendingOp> first_read_, write_;
  std::size_t operations_ = 0;
};

}  // namespace pianola::graph
