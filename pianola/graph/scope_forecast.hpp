#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/graph/memory_forecast.hpp>
#include <pianola/parallel/options.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {

/// User scopes of torch (RECORD_USER_SCOPE, torch.profiler.record_function) that tell a step's parts: whose names begin with these,
/// with a name of its own for each model and layer behind it. Optimizers of torch's Python interface open theirs by themselves.
inline constexpr std::string_view kModelScope = "pianola::model ", kLayerScope = "pianola::layer ";

/// What the graphs of a scope would take. Bytes in whole units of 512.
struct PredictedScope {
  std::string name;  ///< "each layer", "forward and backward", "iteration without optimizer", "whole iteration".
  std::string obstacle = {};  ///< Why it cannot be told; empty: it can, and all that follows holds.
  std::size_t graphs = 0;
  std::uint64_t pool = 0;     ///< Of pools that torch's allocator fills: one for the scope, or one for each layer.
  std::uint64_t scratch = 0;  ///< Of these, what nobody needs when the scope is over.
  std::uint64_t results = 0;  ///< What somebody does: results, gradients.
  std::uint64_t inputs =
      0;  ///< Of static inputs, outside of pools: what the caller gives, and what eager code before it makes.
  std::uint64_t copied = 0;       ///< Of outside tensors that it writes, which a capture copies aside.
  std::uint64_t executable = 0;   ///< About, of the executables.
  std::optional<bool> fits = {};  ///< Whether captures find room. Unknown on the CPU.
  std::string verdict = {};       ///< The same in a sentence.
};

/// What lanes (CaptureOptions::branches) of one graph may add at most: a bound, which few graphs come near.
struct LanesForecast {
  int lanes = 0;
  std::uint64_t workspaces = 0;  ///< Of cuBLAS, one for each lane where ParallelOptions names no number. 0 on the CPU.
  std::uint64_t reuse = 0;       ///< If nothing that the step frees were used again.
  std::uint64_t at_most = 0;     ///< Both, but no more than ParallelOptions::memory_limit.
};

/// A step's memory by what of it is in graphs.
struct PIANOLA_API ScopeForecast {
  c10::Device device = c10::Device(c10::kCPU);
  std::vector<PredictedScope> scopes = {};  ///< From the least in graphs to the most; always the same four.
  LanesForecast lanes = {};                 ///< Of a graph of the whole iteration.
  std::optional<std::uint64_t> free = {};   ///< What the driver has left for pools. Unknown on the CPU.
  std::uint64_t cached = 0;  ///< Unused in torch's allocator, outside of pools: for inputs and copies alone.

  [[nodiscard]] Report report() const;
};

/// What predict_scopes() is told. Every field has a safe default.
struct ScopeForecastOptions {
  /// Runs before, 0 or more. What the first run makes and keeps is no part of the forecast then.
  int warmup = 1;
  /// That each call of the step is given: a graph copies them into static inputs.
  std::vector<at::Tensor> inputs = {};
  /// 2 or more; see CaptureOptions::branches.
  int lanes = 4;
  ParallelOptions parallel = {};
};

/// As predict_memory(), for each scope that graphs of a step may have.
///
///     whole iteration              all that the step is handed out
///     iteration without optimizer  without what is made in an optimizer's step
///     forward and backward         of models, where user scopes name them; else all up to the end of the last backward pass, without
///                                  the optimizer
///     each layer                   of layers that user scopes name: a pool for each
///
/// A backward operation belongs to the part of its forward operation. Static inputs of models and layers are what they read that the
/// step has made outside of them, gradients of their results among it.
///
/// @throws UsageError  `warmup` is negative, `lanes` is below 2, or a capture is open.
/// @throws DeviceError, UnsupportedError, CaptureError  As predict_memory().
/// Whatever the step throws reaches the caller unchanged.
[[nodiscard]] PIANOLA_API ScopeForecast predict_scopes(const std::function<void()>& step, c10::Device device,
                                                       const ScopeForecastOptions& options = {});

}  // namespace pianola
