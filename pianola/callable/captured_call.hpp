#pragma once
#include <pianola/callable/leaf_set.hpp>
#include <pianola/parallel/branch_info.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

class CapturedCallable;

/// A call of a function as graphs.
class CapturedCall {
 public:
  CapturedCall() = default;
  CapturedCall(const CapturedCall&) = delete;
  CapturedCall& operator=(const CapturedCall&) = delete;
  virtual ~CapturedCall() = default;

  /// Whether what it reads from outside was replaced: it can never be replayed again.
  [[nodiscard]] virtual bool is_stale() const = 0;
  /// In words, where it is.
  [[nodiscard]] virtual std::string why_stale() const = 0;
  /// Whether it can be replayed now: no earlier call's backward still needs it, gradients are as it found them.
  [[nodiscard]] virtual bool is_free() const = 0;
  /// Of one that is not free: leaves whose gradients others have taken the place of. Had it own ones, it might be.
  [[nodiscard]] virtual LeafSet replaced_gradients() const { return {}; }
  /// Before a replay: the values of its NumberSlots. @return  False: it cannot be replayed with these; nothing was set.
  [[nodiscard]] virtual bool set_numbers(std::span<const c10::IValue> /*values*/) { return true; }
  /// @param inputs  Of the signature that it was captured with.
  /// @throws GuardError, ReplayError  It is stale; nothing was launched.
  [[nodiscard]] virtual std::vector<at::Tensor> replay(std::span<const at::Tensor> inputs) = 0;
  /// What has left gradients of weights for later; nullptr: nothing has.
  [[nodiscard]] virtual std::shared_ptr<CapturedCallable> debtor() const noexcept { return nullptr; }
  /// That inputs are copied into.
  [[nodiscard]] virtual std::vector<at::Tensor> static_inputs() const = 0;
  /// What GraphedOptions::branches came to, per graph.
  [[nodiscard]] virtual std::vector<BranchInfo> branches() const = 0;
};

}  // namespace pianola::callable
