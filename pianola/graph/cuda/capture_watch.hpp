#pragma once
#include <pianola/core/error.hpp>
#include <pianola/cuda/capture_info.hpp>
#include <pianola/graph/offence.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/util/Exception.h>
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

/// Why a capture is broken, from what was watched: names the operation and the cure.
[[nodiscard]] Diagnosis explain_broken(const CaptureWatch& watch, const OpTrace* trace);

/// Why ending a capture failed with this code.
[[nodiscard]] Diagnosis explain_end(CUresult code, const CaptureWatch& watch);

/// The device ran out of memory; also where torch broke the capture when it then gave cached memory back.
[[nodiscard]] std::optional<Diagnosis> explain_out_of_memory(const c10::Error& error, const CaptureWatch& watch,
                                                             const OpTrace* trace);

/// What torch's error means, where it is one that capturing caused; nothing if it is the step's own.
[[nodiscard]] std::optional<Diagnosis> explain_error(const c10::Error& error, const CaptureWatch& watch,
                                                     const OpTrace* trace);

/// As explain_error(), for the first use of a library; also where the capture broke by it.
[[nodiscard]] std::optional<Diagnosis> explain_cold_library(const c10::Error& error, const CaptureWatch& watch,
                                                            const OpTrace* trace);

/// As explain_error(), for work that went to the default stream; also where the capture broke by it.
[[nodiscard]] std::optional<Diagnosis> explain_default_stream(const c10::Error& error, const CaptureWatch& watch);

/// A recording without a node: says why, from the operations that were seen.
[[nodiscard]] Diagnosis explain_empty(const OpTrace* trace, const std::string& device);

}  // namespace pianola::graph
