#pragma once
#include <pianola/callable/last_writes.hpp>
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

  /// Whether an operation wrote the tensor's memory behind the one that made the copy.
  [[nodiscard]] bool is_written_behind(const at::Tensor& tensor, const at::Tensor& copy) const;
  /// A check of the caller's own is about to be put into the recording. @return  Its place: for check_in_replays().
  std::size_t note_check(const std::vector<at::Tensor>& tensors);

  [[nodiscard]] const std::vector<c10::IValue>& values() const noexcept { return values_; }
  /// Of a recording: whether replays check anything.
  [[nodiscard]] bool any() const noexcept { return checks_ != 0; }
  /// Why a replay that ends at one of its checks could not be taken back; empty where it can.
  [[nodiscard]] std::string obstacle() const { return offence_at_ <= last_place_ ? offence_ : ""; }
  /// Bytes of memory that was there before the run.
  struct Bytes {
    c10::Storage of;
    std::size_t begin, end;
  };
  /// What of it is written before the last check.
  [[nodiscard]] std::vector<Bytes> written() const;
  [[nodiscard]] bool draws() const noexcept { return draws_at_ <= last_place_; }

  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

 private:
  [[nodiscard]] bool takes(const trace::OpInfo& op, c10::ArrayRef<c10::IValue> inputs) const;
  void on_call(const trace::OpInfo& op, torch::jit::Stack& stack);
  void pass(const trace::OpInfo& op, torch::jit::Stack& stack);
  void note_found_part();
  void note_offence(const char* offence, std::size_t operation);
  void note_parts(std::size_t next_operation);
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
  LastWrites writes_;
  std::size_t last_place_ = 0;  // of checks
  // The first operation that does it:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::string offence_;
  std::size_t offence_at_ = kNone, draws_at_ = kNone;
  std::vector<std::pair<std::size_t, Bytes>> written_;
};

/// Whether what two runs have read is the same, bit by bit, as far as both have come.
[[nodiscard]] bool begin_alike(const std::vector<c10::IValue>& one, const std::vector<c10::IValue>& other);
/// Whether numbers are the same, bit by bit.
[[nodiscard]] bool same_values(const std::vector<c10::IValue>& one, const std::vector<c10::IValue>& other);

}  // namespace pianola::callable
