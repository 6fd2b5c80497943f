#pragma once
#include <pianola/callable/call.hpp>
#include <pianola/callable/graphed_info.hpp>
#include <pianola/callable/graphed_options.hpp>
#include <pianola/core/export.hpp>
#include <pianola/graph/options.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pianola::callable {

/// What sets the caches of `graphed` and of FullIteration apart.
struct CachePolicy {
  const char* owner = "pianola::graphed";  ///< In warnings, where nobody listens.
  const char* noun = "call";               ///< What messages call one.
  /// With signatures, and room for graphs, of their own each; they share pools.
  std::size_t functions = 1;
  /// Calls are whole iterations: captured as steps whatever they return; one at a time, and a second one at the same time is
  /// refused; static results are given out as they are; captures reuse memory as Note [Memory of captures] says.
  bool whole_iterations = false;
  /// A call that cannot be captured, or not any more, throws; else it runs eagerly from then on.
  bool strict = false;
  CheckMode check = CheckMode::standard;  ///< What replays of steps check.
  std::vector<NamedTensor> names = {};    ///< Of tensors that steps use, for messages.
  void (*check_call)() = nullptr;  ///< Refuses a call, by an exception, before anything is done; where there is one.
};

/// How a cache captures, and what it keeps.
struct CacheOptions : GraphedOptions {
  /// @throws UsageError  An option is out of range.
  PIANOLA_API CacheOptions(GraphedOptions options,  // NOLINT(google-explicit-constructor)
                           CachePolicy what_differs = {});

  CachePolicy policy;
};

/// The graphs of functions, by signature of their calls; what `graphed` and FullIteration are made of, in C++ and in Python.
///
/// Threads:  Any; calls wait for each other while one replays, and run eagerly while one captures. The cache's lock is
///           held while Call::to_capture(), the function under capture and the module's view run, and never while
///           run_eagerly() and on_fallback do. A caller whose functions need a lock of their own, such as Python's GIL,
///           must not hold it when it calls the cache.
class PIANOLA_API SignatureCache {
 public:
  struct Key {
    std::int64_t number;  ///< The caller's, for what else of the call matters: other arguments, and their structure.
    std::size_t function = 0;  ///< Below CachePolicy::functions.
  };

  /// Of a replay.
  struct Result {
    std::vector<at::Tensor> fresh = {};
    /// In place of `fresh`: the same tensors at each replay of this structure.
    std::shared_ptr<const std::vector<at::Tensor>> unchanging = {};
    std::shared_ptr<const void> structure;  ///< Capturable::structure of the capture that was replayed.

    [[nodiscard]] bool is_static() const noexcept { return unchanging != nullptr; }
    [[nodiscard]] const std::vector<at::Tensor>& leaves() const noexcept { return unchanging ? *unchanging : fresh; }
  };

  /// @param module  Looks at the module whose training flags belong to the signature; empty where there is none. Called
  ///                at the first call, which may come long after.
  explicit SignatureCache(CacheOptions options, Callable::View module = {});
  SignatureCache(const SignatureCache&) = delete;
  SignatureCache& operator=(const SignatureCache&) = delete;
  ~SignatureCache();

  /// Replays the call, after capturing it where that is due; or runs it eagerly and returns nothing.
  ///
  /// @param inputs  Defined tensors.
  /// @throws CaptureError, UsageError  The call cannot be captured, and the cache is strict; nothing was computed.
  /// Whatever run_eagerly() throws reaches the caller unchanged; nothing else that the eager function would not throw.
  [[nodiscard]] std::optional<Result> run(Key key, const CallInputs& inputs, Call& call);
  /// Whether the next run() of this call is going to capture it.
  [[nodiscard]] bool is_due(Key key, const CallInputs& inputs);
  /// Captures a call that was never run, by what calls of another key of the function have shown; nothing where it has a
  /// graph, or stays eager. @throws CaptureError, UsageError  As run(); UsageError as well where none was observed.
  void capture(Key key, const CallInputs& inputs, Call& call);

  /// Keeps calls of this key with such inputs eager from now on. The next one reports the reason.
  /// @throws UsageError  With the reason, where the cache is strict.
  void refuse(Key key, const CallInputs& inputs, std::string reason);

  /// Of all calls of a function: computes the gradients of weights that the oldest backward pass has left for later.
  /// @return  False: none has left any.
  bool backward_weights(std::size_t function = 0);
  /// GraphedCallable::oldest_debt() of that.
  [[nodiscard]] std::uint64_t oldest_debt(std::size_t function = 0) const;

  /// Forgets all signatures of a function and drops their graphs. Outputs and gradients live on, and backward passes of
  /// calls in flight can still run. @throws UsageError  The function is being captured, or a part of it that stays eager calls this
  /// while it is replayed.
  void reset(std::size_t function = 0);

  [[nodiscard]] GraphedInfo info(std::size_t function = 0) const;
  /// Of all pools that it captured into.
  [[nodiscard]] std::size_t pool_bytes() const;
  /// Of the static inputs of all graphs; memory that several share counts once.
  [[nodiscard]] std::size_t input_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pianola::callable
