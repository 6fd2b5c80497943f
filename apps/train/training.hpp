#pragma once
#include <apps/train/model_config.hpp>

#include <pianola/config/cuda_graph_config.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pianola::demo {
class Text;
}

namespace pianola::train {

struct TrainingConfig {
  ModelConfig model = {};
  std::int64_t steps = 50;
  std::int64_t batch = 8;
  std::uint64_t seed = 1;
};

/// What a configuration graphs.
struct Scope {
  std::string name;  ///< For tables: "local: attn, mlp".
  CudaGraphImpl impl = CudaGraphImpl::none;
  std::vector<std::string> parts = {};  ///< As Part::scope(); empty: whole layers.
  int warmup = 3;
  bool retain_graph = false;
  bool dispatch_is_eager = false;  ///< Experts are parts that stay eager.
};

/// A training, from the same weights, batches and random numbers as any other one of its configuration.
struct Outcome {
  at::Tensor losses;                   ///< float32 [steps], on the CPU.
  std::vector<at::Tensor> parameters;  ///< As they were left.
  std::size_t graphed = 0;             ///< Parts that were to become graphs; with a full iteration 1.
  std::size_t captured = 0;            ///< Of them those that did.
  std::size_t replays = 0;
  double ms_per_step = 0;                  ///< Over the last half of the steps.
  std::optional<std::int64_t> bytes = {};  ///< Device memory in use at most, less that at the start; not on a CPU.
  std::vector<std::string> reasons = {};   ///< Why parts stayed eager, each once.

  [[nodiscard]] bool equals(const Outcome& other) const;
};

/// @throws UsageError  No part of the model is in the scope.
[[nodiscard]] Outcome train(const TrainingConfig& config, const demo::Text& text, c10::Device device,
                            const Scope& scope);

}  // namespace pianola::train
