#pragma once
#include <pianola/cuda/capture_info.hpp>
#include <pianola/graph/offence.hpp>
#include <pianola/trace/op_stream.hpp>

#include <cuda.h>

#include <cstddef>
#include <optional>

namespace pianola::graph {

/// Asks the capturing stream after every operation, and after every call inside one, whether the capture still stands:
/// the first that ends with a broken capture is the one to blame.
class CaptureWatch final : public trace::OpObserver {
 public:
  explicit CaptureWatch(CUstream stream) : stream_(stream) {}

  [[nodiscard]] trace::OpInterest interest() const override { return {.inner = true}; }
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;
  void on_inner_end(const trace::OpSpan& around, const char* inner) override;

  /// The operation that broke the capture; empty if none did.
  [[nodiscard]] const std::optional<OffendingOp>& offender() const noexcept { return offender_; }
  /// Whether the capture broke between operations: the offender is then the first operation after it.
  [[nodiscard]] bool broke_before_offender() const noexcept { return between_; }
  /// The last operation that returned nothing although it should have: it threw.
  [[nodiscard]] const std::optional<OffendingOp>& last_throw() const noexcept { return last_throw_; }
  [[nodiscard]] std::size_t operations() const noexcept { return operations_; }
  /// The last operation that began while the capture stood; nullptr before the first.
  [[nodiscard]] const trace::OpInfo* last_op() const noexcept { return last_op_; }

 private:
  [[nodiscard]] bool broken() const { return capture_status(stream_) == CaptureStatus::invalidated; }

  CUstream stream_;
  std::size_t operations_ = 0;
  const trace::OpInfo* last_op_ = nullptr;
  std::optional<OffendingOp> offender_;
  std::optional<OffendingOp> last_throw_;
  bool between_ = false;
};

}  // namespace pianola::graph
