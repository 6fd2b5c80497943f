#pragma once
#include <pianola/callable/callable.hpp>
#include <pianola/graph/number_slots.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::callable {

/// The tensors of one call; either all are copied, or all are fixed.
struct CallInputs {
  std::span<const at::Tensor> copied = {};  ///< Wherever they are: a graph copies them into its own.
  std::span<const at::Tensor> fixed = {};   ///< The same memory in each call of this key: a graph reads it there.
  /// Values for the NumberSlots of graphs of this key; empty where it has none, or no capture yet.
  std::span<const c10::IValue> numbers = {};

  /// Those that make the signature.
  [[nodiscard]] std::span<const at::Tensor> described() const noexcept { return copied.empty() ? fixed : copied; }
};

/// A function of tensors to tensors, made for one capture.
struct Capturable {
  /// Takes the call's input tensors, in order; returns one tensor, or a list of those in its result, in order.
  Callable callable;
  /// Whatever the caller needs to give these tensors the structure of the result; `callable` may fill it in when it
  /// runs. Comes back with the result of each replay.
  std::shared_ptr<const void> structure = {};
};

/// What a run of a function did on the host besides calling operations, which a replay would not do again. Texts of
/// errors; empty where there is nothing.
struct HostEffects {
  std::string lasting = {};  ///< Counts even if it is seen once: it drew random numbers, asked a clock.
  std::string passing = {};  ///< Counts where it is seen again after the first call: it wrote something.
  /// Tensors that it made and that are kept where nobody looks before the next call makes them anew.
  std::vector<at::Tensor> remade = {};
  /// The values of its late reads (trace::LateRead) went into its result, as far as could be seen, and nowhere else.
  bool only_returns_late_reads = false;
  /// It did something else than most calls will do: captures take no example by it.
  bool is_no_example = false;
  /// From now on other calls of it are parts of the host: the next call is like a first one.
  bool begins_anew = false;
  /// Tensors whose `.data` its code sets, and where: "q.data, train.py:9 in step".
  std::vector<std::pair<at::Tensor, std::string>> given = {};
  /// Off: no code that it ran names gradients, so that it neither reads, asks for nor changes any itself.
  bool names_gradients = true;
  /// Leaves into whose `.grad` its code may have stored; nullopt: nobody knows.
  std::optional<std::vector<trace::WeakTensor>> stored_gradients = {};
  /// Leaves whose gradients it has made undefined, as it would have made any.
  std::vector<trace::WeakTensor> cleared_gradients = {};
  /// It ran code that torch.compile made, which is compiled anew where calls come by a trace::CallGate.
  bool runs_compiled = false;
};

/// One call, as who makes it can run it. All functions are called on the thread of SignatureCache::run(), during it.
class Call {
 public:
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  virtual ~Call() = default;

  /// Runs the function on the arguments of the call, and keeps the result for the caller. What it throws is the
  /// caller's.
  virtual void run_eagerly() = 0;
  /// The same, and looks at what the function does on the host.
  [[nodiscard]] virtual HostEffects run_observed() {
    run_eagerly();
    return {};
  }
  /// No graph of it could be right, whatever the function finds: calls with these arguments may share its key.
  virtual void note_lasting_obstacle() {}
  /// Inputs are on the CPU, and the function computes on another device. @return  Whether later calls will come with others.
  [[nodiscard]] virtual bool note_inputs_elsewhere() { return false; }
  /// Frees what nobody can reach any more, where references go in circles.
  virtual void collect_garbage() {}
  /// The tensors in the result that run_eagerly() kept.
  [[nodiscard]] virtual std::vector<at::Tensor> eager_results() const = 0;
  /// Whether the user stopped the call while it was captured, and `error` comes of that (Python's KeyboardInterrupt): no reason to
  /// give up.
  [[nodiscard]] virtual bool was_interrupted(const std::exception& /*error*/) const { return false; }
  /// Calls of this key did not do the same, or could not be captured. Their keys may not tell numbers apart that are arguments,
  /// and that what they do depends on. @return  Whether that may be: from now on other numbers have
  /// other keys, or the next capture is one of these numbers alone.
  [[nodiscard]] virtual bool tell_numbers_apart(const std::string& /*why*/, bool /*in_capture*/) { return false; }
  /// Numbers among its arguments that calls of this key may have others of, int or double; see Note [Numbers among the
  /// arguments].
  [[nodiscard]] virtual std::vector<c10::IValue> numbers() const { return {}; }
  /// After a capture: where the graph has slots, as indexes of CallInputs::numbers. From now on calls of this key have numbers that
  /// the graph can be given. @throws UsageError  No graph could be right.
  [[nodiscard]] virtual std::vector<graph::NumberSlot> bind_numbers(const graph::NumberEvidence& /*evidence*/) {
    return {};
  }
  /// Which argument that is no tensor is another one than in the call of this key: "kwargs['step']"; empty where none is.
  [[nodiscard]] virtual std::string changed_since(std::int64_t /*key*/) const {
    return "an argument that is no tensor";
  }
  /// Asked once per capture. Other arguments than tensors are those of this call, frozen.
  [[nodiscard]] virtual Capturable to_capture() = 0;
};

}  // namespace pianola::callable
