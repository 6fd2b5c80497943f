#pragma once
#include <pianola/callable/eager_run.hpp>
#include <pianola/callable/input_holders.hpp>
#include <pianola/callable/result_history.hpp>
#include <pianola/core/error.hpp>
#include <pianola/trace/call_site.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace pianola::callable {

/// What one run made or was given and somebody keeps, though it is neither a result nor a gradient: each replay would write it anew.
///
/// While a history of its results may hold them, nothing can be said: see Note [What a history holds].
class KeptTensors {
 public:
  /// @param remade  Tensors that may be kept; see HostEffects.
  /// @param may_leave_gradients  Off: the run is known to have made none, and those of its leaves are not looked at.
  KeptTensors(const EagerRun& run, std::span<const at::Tensor> inputs, const std::vector<at::Tensor>& results,
              const std::vector<at::Tensor>& remade, bool may_leave_gradients);

  /// Whether there are such, which a history of results may hold.
  [[nodiscard]] bool is_open() const;
  [[nodiscard]] bool any() const;
  /// The inputs, for which a history speaks as well. See Note [Inputs that a function keeps].
  [[nodiscard]] InputHolders& inputs() noexcept { return inputs_; }
  /// One that is kept, where that can be said; right behind the call.
  [[nodiscard]] std::optional<std::size_t> kept_input() const;
  /// All that are kept as kept_input() tells, for the next call to go on from. Nothing is said of inputs from here on.
  [[nodiscard]] InputHolders take_kept_inputs();
  [[nodiscard]] static Diagnosis refuse_kept_input(std::size_t position);
  /// Waits a moment for the threads of autograd, and of process groups, to let go of what they were given.
  void wait_for_threads() const;
  /// One that is there still; nothing where all are gone.
  [[nodiscard]] std::optional<Diagnosis> offence() const;

 private:
  struct Kept {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    trace::CallSite site;
    bool in_backward;
  };
  [[nodiscard]] bool is_held(const Kept& kept) const;

  std::vector<Kept> kept_;
  InputHolders inputs_;
  bool communicates_;
  ResultHistory history_;
};

}  // namespace pianola::callable
