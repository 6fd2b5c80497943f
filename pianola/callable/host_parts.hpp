#pragma once
#include <pianola/callable/host_part.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/export.hpp>
#include <pianola/trace/call_gate.hpp>
#include <pianola/trace/host_calls.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/storage_set.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace pianola::callable {

/// What a part is that begins.
struct HostPartOptions {
  bool runs_half = false;  ///< In a capture: not all that it does on the host. So the first launch runs it again, too.
  HostPart::Run run = {};  ///< What a replay runs in its place; empty: the part is passive, and only looked at.
  std::function<void()> on_varying = {};        ///< Told where it would have to be active.
  std::span<const at::Tensor> parameters = {};  ///< Whose gradients it uses.
  bool reads = false;                           ///< It may read what the graph computes: but for parts within it.
  std::function<HostPart::Run()> save = {};     ///< Gives what puts its objects back as they are now.
};

/// The parts of the host in one run of a step, found while it runs.
class PIANOLA_API HostParts final : public trace::OpObserver {
 public:
  /// @param is_capture  The run may have to be taken back.
  explicit HostParts(bool is_capture = false) : is_capture_(is_capture) {}

  /// While it lives, current() finds them.
  class Open {
   public:
    explicit Open(HostParts& parts);
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    ~Open();

   private:
    HostParts& parts_;
    HostParts* outer_;
  };
  /// Those of the run that is observed on this thread; nullptr: none is.
  [[nodiscard]] static HostParts* current() noexcept;

  /// A part begins. One within another belongs to that. @return  How many were open before.
  int begin(c10::Device device, HostPartOptions options);
  /// It ends, and what was left open in it. @param depth  What begin() gave.
  /// @return  Whether it made history for autograd, or ran a backward pass: then no graph could be right.
  bool end(int depth);

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = true, .host_numbers = true}; }
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  /// Why no graph could be right; nothing where one could.
  [[nodiscard]] std::optional<Diagnosis> obstacle() const;
  /// The run ends. @return  Of passive parts: what tells that they have to be active.
  [[nodiscard]] std::vector<std::function<void()>> passive() const { return passive_; }
  /// Whether tensors of the host were used in a passive part, or somebody holds what it computed.
  [[nodiscard]] bool must_be_active() const;
  /// Whether an operation of a part has made this memory.
  [[nodiscard]] bool made(const c10::StorageImpl* storage) const { return made_.contains(storage); }
  [[nodiscard]] bool any_active() const noexcept { return !parts_.empty(); }
  /// Whether an operation that is recorded now is one of an active part.
  [[nodiscard]] bool is_in_active() const noexcept { return scope_ != nullptr && active_; }
  /// Parameters whose gradients its parts use, and that are still there.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  /// Whether a read gave something else than captures take it for.
  [[nodiscard]] bool read_otherwise() const noexcept { return read_otherwise_; }
  [[nodiscard]] std::vector<HostPart> take() { return std::move(parts_); }
  /// The run is taken back.
  void put_back() const;

 private:
  void end_innermost();
  void let_read(bool lets);
  void on_call(const trace::OpInfo& op, torch::jit::Stack& stack);
  void note_made(const trace::OpSpan& op);
  [[nodiscard]] bool holds_results_of_passive() const;

  std::shared_ptr<trace::HostCalls> calls_ = std::make_shared<trace::HostCalls>();
  std::unique_ptr<trace::HostCalls::Scope> scope_;
  std::optional<trace::CallGate> gate_;  // where the open part reads
  int depth_ = 0;
  bool is_capture_;
  bool active_ = false;
  bool reads_ = false;
  bool is_of_gpu_ = false;  // the part that is open
  bool read_otherwise_ = false;
  bool makes_history_ = false;  // an active part does
  bool draws_where_it_reads_ = false;
  bool describes_in_place_ = false;
  bool moves_parameters_ = false;
  std::vector<trace::WeakTensor> parameters_;  // whose gradients parts use, passive ones too
  // Of the open part, with their memory as it began.
  std::vector<std::pair<trace::WeakTensor, const c10::StorageImpl*>> placed_;
  std::vector<HostPart> parts_;  // active ones
  std::vector<std::function<void()>> passive_;
  trace::StorageSet made_;                        // by operations of parts
  trace::StorageSet passive_made_;                // of passive ones
  std::vector<trace::WeakTensor> passive_given_;  // tensors of that memory
  std::size_t operations_ = 0;
  // Operations of the open part that run: their numbers, their calls, and the tensors that are their arguments.
  struct Running {
    std::uint64_t number;
    std::size_t call;
    std::vector<const c10::TensorImpl*> arguments;
  };
  std::vector<Running> running_;
};

}  // namespace pianola::callable
