#pragma once
#include <pianola/callable/result_history.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace pianola::callable {

// Note [Inputs that a function keeps]
// `cache = x`, `buffer.set_data(x)`: eager gives the place each call's own tensor. A recorded run leaves a static input there, which the
// next call's values overwrite, and a replay gives it to nobody: after calls of several signatures the place has the input of whichever was
// captured last. So a function that keeps an input stays eager, as one that keeps what it made (KeptTensors). References tell: there are more
// to the tensor, or to its memory, than before. Each warm-up call is asked as soon as it is over, before the caller can take references of
// its own; not where the history of results may have saved the input (Note [What a history holds]). There the run that a capture warms up
// with is asked, whose history is gone. What Python's code holds is for Python's watch (_host_watch), which lets replays store it anew.

/// How many references there are to the inputs of a function, and to their memory: more after a run than before it, and the
/// function keeps one. Keeps none alive. One thread.
class InputHolders {
 public:
  InputHolders() = default;
  /// Before the run.
  explicit InputHolders(std::span<const at::Tensor> inputs);

  /// Of an input in this memory nothing is said.
  void leave_out(const std::function<bool(const c10::StorageImpl*)>& is_known);
  /// References that this history alone has are not the function's.
  void count_out(ResultHistory history) { history_ = std::move(history); }
  /// Of no input is anything said.
  void clear() noexcept { inputs_.clear(); }
  /// Those of which something is said.
  [[nodiscard]] std::vector<std::size_t> positions() const;
  /// Of others nothing is said.
  void keep_to(const std::vector<std::size_t>& positions);
  /// How many references to each input's tensor there are when nobody keeps it, where that is not what was there before the run.
  void expect_references(std::size_t count);
  /// What the run before kept, and was given again, counts as kept by this one. @param before  Right after its run: forget_free().
  void go_on_from(const InputHolders& before);
  /// After the run: of inputs that nobody keeps now, nothing is said. Who takes references to them from here on is the caller.
  void forget_free();

  /// After the run: an input that it keeps, if there is one.
  [[nodiscard]] std::optional<std::size_t> kept() const;
  /// The same, after a moment in which the threads of autograd let go of what they were given.
  [[nodiscard]] std::optional<std::size_t> kept_for_long() const;

 private:
  struct Input {
    trace::WeakTensor tensor;
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    std::size_t position;
    std::size_t to_tensor, to_memory;
  };
  [[nodiscard]] bool is_kept(const Input& input) const;

  std::vector<Input> inputs_;
  ResultHistory history_;
};

}  // namespace pianola::callable
