#pragma once
#include <pianola/trace/storage_set.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace pianola::callable {

// Note [Results that share memory]
// Eager code may return its argument, views of it, of a weight or of another result, and who writes to one of them writes
// to all. So a replay returns views where eager does: of the caller's own tensors, and of one another. Those that have a
// history are to autograd what a custom Function returns: their gradients come from one node, so that a write through a
// view, whose history autograd would have to rewrite, is refused by torch.

/// Where the memory of one result comes from, and how the result lies in it.
struct OutputOrigin {
  enum class Kind {
    made,     ///< By the graph, for this result alone, or as what others are views of.
    input,    ///< The call's own input, or a view of it.
    outside,  ///< A tensor that was there before the call, or a view of one.
    output,   ///< Another result, which it is a view of.
    region    ///< Memory that the graph made and of which several results are parts.
  };
  Kind kind = Kind::made;
  std::size_t position = 0;           ///< Of the input, the output or the region.
  at::Tensor tensor = {};             ///< The memory from outside; does not keep the tensor alive that has it.
  trace::WeakTensor itself = none();  ///< Where it is no view of it.
  bool is_itself = false;             ///< The input or the tensor from outside, not a view of it.
  std::vector<std::int64_t> sizes = {}, strides = {};
  std::int64_t offset = 0;  ///< In elements, from the first one of what it is a view of.

  static trace::WeakTensor none() { return trace::WeakTensor(at::Tensor().getIntrusivePtr()); }
  /// The result, as a view of `base`: what it is a view of in this call.
  [[nodiscard]] at::Tensor view_of(const at::Tensor& base) const;
};

/// Whether a result, or its memory, was there before the run.
enum class Before { no, memory, itself };

/// The results of a run that counts for nothing: what the next run returns again was there before.
class EarlierResults {
 public:
  void note(const std::vector<at::Tensor>& results);
  [[nodiscard]] Before holds(const at::Tensor& result) const;

 private:
  trace::StorageSet memory_;
  std::vector<trace::WeakTensor> tensors_;
};

/// The origins of all results of a captured function.
class OutputOrigins {
 public:
  /// @param inputs  The static ones.
  /// @throws UsageError  A result looks at memory of an input or of another result in a way that no strides say.
  void find(const std::vector<at::Tensor>& outputs, std::span<const at::Tensor> inputs,
            const std::function<Before(const at::Tensor&)>& before);

  [[nodiscard]] bool are_known() const noexcept { return known_; }
  [[nodiscard]] bool are_made_by_the_graph(std::size_t output) const;
  /// Whether a call returns tensors of its own, whatever it is given.
  [[nodiscard]] bool use_inputs() const noexcept;
  /// Flat tensors that cover what several of the `outputs` are parts of, where none of them is the whole.
  [[nodiscard]] std::vector<at::Tensor> regions_of(const std::vector<at::Tensor>& outputs) const;

  /// What one call returns.
  struct Call {
    std::span<const at::Tensor> inputs;            ///< The caller's.
    std::span<const at::Tensor> outputs, regions;  ///< Static.
    c10::function_ref<at::Tensor(const at::Tensor& memory)>
        fresh;  ///< A tensor of the caller's own: the same memory, or a copy.
    const std::vector<std::size_t>* differentiable = nullptr;  ///< Which get a history afterwards; in order.
  };
  [[nodiscard]] std::vector<at::Tensor> give_out(const Call& call) const;
  /// What it asks `fresh` for, in that order.
  [[nodiscard]] std::vector<at::Tensor> own_memory(std::span<const at::Tensor> outputs,
                                                   std::span<const at::Tensor> regions) const;

 private:
  struct Region {
    std::size_t output;   // one of those that lie in it
    std::int64_t offset;  // of its first element in the storage
    std::int64_t elements;
  };
  void find_shared(const std::vector<at::Tensor>& outputs);
  void share(const std::vector<at::Tensor>& outputs, const std::vector<std::size_t>& group);
  std::vector<OutputOrigin> origins_;
  std::vector<Region> regions_;
  bool known_ = false;
  bool plain_ = true;  // each is memory of its own
};

}  // namespace pianola::callable
