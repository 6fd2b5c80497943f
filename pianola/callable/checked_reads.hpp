#pragma once
#include <pianola/core/export.hpp>
#include <pianola/trace/call_gate.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pianola::callable {

/// Reads of one run of a step that its replays check; see Note [Reads that replays check]. While a run is observed, the values are
/// noted; while it is recorded, each read is answered with that of the run before, and a check is put in its place.
///
/// A result whose size is a value (nonzero, an index that is a mask) is made for the number that was read: with an operation that
/// is told the size, in both runs.
class PIANOLA_API CheckedReads final : public trace::OpObserver {
 public:
  /// Of a run that is observed. @param device  Where the step computes: on a GPU, reads of tensors of the CPU are the host's own.
  explicit CheckedReads(c10::Device device) : device_(device) {}
  /// Of a recording. @param expected  What the run before read.
  CheckedReads(c10::Device device, std::vector<c10::IValue> expected)
      : device_(device), is_recording_(true), expected_(std::move(expected)) {}

  /// While it lives, calls of this thread come by it.
  class Open {
   public:
    explicit Open(CheckedReads& reads);
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    ~Open();

   private:
    CheckedReads* outer_;
    trace::CallGate gate_;
  };
  /// Those of the run on this thread; nullptr: it checks none.
  [[nodiscard]] static CheckedReads* current() noexcept;

  /// A check of the caller's own is about to be put into the recording.
  void note_check();

  [[nodiscard]] const std::vector<c10::IValue>& values() const noexcept { return values_; }
  /// Of a recording: whether replays check anything.
  [[nodiscard]] bool any() const noexcept { return checks_ != 0; }
  /// Why a replay that ends at one of its checks could not be taken back; empty where it can.
  [[nodiscard]] const std::string& obstacle() const noexcept { return obstacle_; }
  /// Bytes of memory that was there before the run.
  struct Bytes {
    c10::Storage of;
    std::size_t begin, end;
  };
  /// What of it is written before the last check.
  [[nodiscard]] const std::vector<Bytes>& written() const noexcept { return written_; }
  [[nodiscard]] bool draws() const noexcept { return drawn_; }

  void on_op_begin(const trace::OpSpan& op) override;

 private:
  [[nodiscard]] bool takes(const trace::OpInfo& op, c10::ArrayRef<c10::IValue> inputs) const;
  void on_call(const trace::OpInfo& op, torch::jit::Stack& stack);
  void pass(const trace::OpInfo& op, torch::jit::Stack& stack);
  void note_parts();
  void note_write(const at::Tensor& tensor);
  [[nodiscard]] bool is_ours(const at::Tensor& tensor) const;
  [[nodiscard]] bool knows_next() const;
  void read(const trace::OpInfo& op, torch::jit::Stack& stack);
  [[nodiscard]] std::int64_t count(const at::Tensor& tensor);
  [[nodiscard]] at::Tensor places_of(const at::Tensor& mask);
  [[nodiscard]] c10::IValue without_masks(const c10::IValue& indices);

  c10::Device device_;
  bool is_recording_ = false;
  bool passes_ = false;  // while pass() calls the operator
  std::vector<c10::IValue> expected_;
  std::vector<c10::IValue> values_;
  std::size_t checks_ = 0;
  // So far in the run, and what of it came before the last check.
  std::string offence_, obstacle_;
  bool draws_ = false, drawn_ = false;
  std::vector<Bytes> all_written_, written_;
};

/// Whether what two runs have read is the same, bit by bit, as far as both have come.
[[nodiscard]] bool begin_alike(const std::vector<c10::IValue>& one, const std::vector<c10::IValue>& other);
/// Whether numbers are the same, bit by bit.
[[nodiscard]] bool same_values(const std::vector<c10::IValue>& one, const std::vector<c10::IValue>& other);

}  // namespace pianola::callable
