#pragma once
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/storage_set.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <vector>

namespace pianola::trace {

// Note [Calls of the host]
// An optimizer counts its steps in tensors, which it reads: on the CPU where the parameters are on a GPU. Such calls belong to
// the host as Python's arithmetic does: no graph holds them, and each call of the step makes them anew. For a graph of a GPU
// they are the calls on tensors of the CPU, and those that make such a tensor. On the tape, where all tensors are on the CPU, they
// are those whose tensors have been read by the host before, in a part of the host that is observed, or computed from those; what
// is fresh and of one number, as torch.tensor(1.) is, may be among them. What the host asks of a count (`n_averaged == 0`) is
// computed first: so what a value that it reads was computed from, number by number, is a count as well.
//
// An operation of the graph may read such a number, without a dimension: it is a value then, like a number of Python's. It may not
// write there. A copy of one to a GPU is such an operation, and not the host's own: captured, it gives the GPU the number
// (number_given() in host_copy.hpp).
//
// A part may also read what the graph computes, where its replays can stop for that: whether gradients have overflowed. Such a
// read is the host's own as well.

/// Tells which calls are the host's own, in one run of a step.
class HostCalls final : public OpObserver {
 public:
  [[nodiscard]] OpInterest interest() const override { return {.outputs = true}; }
  void on_op_begin(const OpSpan& op) override;
  void on_op_end(const OpSpan& op) override;

  /// Whether the call is the host's own. @param computed  What own calls have computed in another run of the part, which runs now.
  [[nodiscard]] bool owns(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs,
                          const StorageSet* computed = nullptr) const;
  /// One that is begins.
  void note_own(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs);
  /// It ends.
  void note_own_results(c10::ArrayRef<c10::IValue> outputs);
  /// Whether it is a number that the host's own calls have used or computed, while a Scope is open.
  [[nodiscard]] bool gives(const at::Tensor& tensor) const;
  /// Whether the part that is open may read what the graph computes.
  void let_read(bool lets) noexcept { reads_ = lets; }
  /// Whether the call is such a read.
  [[nodiscard]] bool is_read(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) const;
  /// Whether operations of the graph use a tensor that calls of the host's own have used, other than as a number.
  [[nodiscard]] bool are_mixed() const noexcept { return mixed_; }

  /// While it lives, streams of this thread keep the host's own calls from their observers, and what is read on the host
  /// otherwise is remembered for later runs.
  class Scope {
   public:
    /// @param device  Of the graph.
    /// @param active  The part is to be run again by replays, so that its numbers may change. Else it is only looked at.
    Scope(HostCalls& calls, c10::Device device, bool active);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    HostCalls& calls_;
  };
  /// Of the Scope that is open on this thread; nullptr: none is.
  [[nodiscard]] static HostCalls* current() noexcept;
  [[nodiscard]] bool is_active() const noexcept { return active_; }
  /// Whether there was such a call.
  [[nodiscard]] bool had_any() const noexcept { return had_any_; }
  /// Tensors that they have used get the values back that they had before: the run is taken back.
  void put_back() const { put_back({}); }
  /// The values of the tensors that they have used until now.
  using Values = std::vector<at::Tensor>;
  [[nodiscard]] Values values() const;
  /// The run is taken back to where they had these values.
  void put_back(const Values& values) const;

 private:
  void note_use(const at::Tensor& tensor);
  void note_read(const at::Tensor& tensor);
  void note_sources(const OpSpan& op);
  [[nodiscard]] bool is_of_the_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs,
                                    const StorageSet* computed) const;
  [[nodiscard]] bool is_of_the_host(const at::Tensor& tensor) const;

  c10::Device device_ = c10::kCPU;
  StorageSet used_;   // by operations of the graph
  StorageSet owned_;  // by calls of the host's own
  struct Before {
    at::Tensor tensor;
    at::Tensor value;
  };
  std::vector<Before> before_;  // of those that were used
  // Numbers of the CPU that an operation of the open part computed from no others, and those.
  struct Computed {
    at::Tensor result;
    std::vector<at::Tensor> sources;
  };
  std::vector<Computed> computed_;
  std::vector<at::Tensor> sources_;  // of the operation that runs
  bool mixed_ = false;
  bool had_any_ = false;
  bool active_ = false;
  bool reads_ = false;
};

}  // namespace pianola::trace
