#pragma once
#include <pianola/callable/callable.hpp>
#include <pianola/callable/graphed_info.hpp>
#include <pianola/callable/graphed_options.hpp>
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

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
};

/// One call, as who makes it can run it. All functions are called on the thread of GraphBank::run(), during it.
class BankCall {
 public:
  BankCall() = default;
  BankCall(const BankCall&) = delete;
  BankCall& operator=(const BankCall&) = delete;
  virtual ~BankCall() = default;

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
  /// Frees what nobody can reach any more, where references go in circles.
  virtual void collect_garbage() {}
  /// The tensors in the result that run_eagerly() kept.
  [[nodiscard]] virtual std::vector<at::Tensor> eager_results() const = 0;
  /// Whether the user stopped the function while it was captured (Python's KeyboardInterrupt): no reason to give up.
  [[nodiscard]] virtual bool was_interrupted() const { return false; }
  /// Which argument that is no tensor is another one than in the call of this key: "kwargs['step']"; empty where none is.
  [[nodiscard]] virtual std::string changed_since(std::int64_t /*key*/) const {
    return "an argument that is no tensor";
  }
  /// Asked once per capture. Other arguments than tensors are those of this call, frozen.
  [[nodiscard]] virtual Capturable to_capture() = 0;
};

/// The graphs of one function, by signature of its calls; what `pianola::graphed` is made of, in C++ and in Python.
///
/// Threads:  Any; calls wait for each other while one replays, and run eagerly while one captures. The bank's lock is
///           held while BankCall::to_capture(), the function under capture and the module's view run, and never while
///           run_eagerly() and on_fallback do. A caller whose functions need a lock of their own, such as Python's GIL,
///           must not hold it when it calls the bank.
class PIANOLA_API GraphBank {
 public:
  struct Result {
    std::vector<at::Tensor> leaves;
    std::shared_ptr<const void> structure;  ///< Capturable::structure of the capture that was replayed.
  };

  /// @param original  Whose training flags belong to the signature, if it is a module.
  /// @throws UsageError  An option is out of range.
  GraphBank(GraphedOptions options, const Callable& original);
  GraphBank(const GraphBank&) = delete;
  GraphBank& operator=(const GraphBank&) = delete;
  ~GraphBank();

  /// Replays the call, after capturing it where that is due; or runs it eagerly and returns nothing.
  ///
  /// @param key     The caller's number for what else of the call matters: other arguments, and their structure.
  /// @param inputs  Defined tensors.
  /// Whatever run_eagerly() throws reaches the caller unchanged; nothing else that the eager function would not throw.
  [[nodiscard]] std::optional<Result> run(std::int64_t key, std::span<const at::Tensor> inputs, BankCall& call);

  /// Keeps calls of this key with such inputs eager from now on. The next one reports the reason.
  void refuse(std::int64_t key, std::span<const at::Tensor> inputs, std::string reason);

  /// Forgets all signatures and drops their graphs. Outputs and gradients live on, and backward passes of calls in
  /// flight can still run.
  void reset();

  [[nodiscard]] GraphedInfo info() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pianola::callable
