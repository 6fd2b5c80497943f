#pragma once
#include "benchmark.hpp"
#include "models/training.hpp"

#include <pianola/training/full_iteration.hpp>

#include <ATen/core/ivalue.h>
#include <ATen/cuda/CUDAGraph.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace pianola::bench::cuda {

/// A training step (forward, loss, backward, Adam) in each scope that graphs can take of it: nothing, the whole iteration,
/// forward and backward of the model, and those of each of its layers. Twins, each with memory of its own, which have
/// computed what eager does, bit for bit, over several steps. The batch comes in tensors that no graph knows.
class ScopeRows {
 public:
  /// @param model  As in training_case().
  /// @param title  What the cases call it.
  /// @throws Error  A row computes something else than eager.
  ScopeRows(std::string model, std::string title);
  ScopeRows(const ScopeRows&) = delete;
  ScopeRows& operator=(const ScopeRows&) = delete;

  /// Back to back, until the device is done.
  Case wall_time(const Settings& settings);
  /// Of an iteration among others.
  Case host_time(const Settings& settings);
  /// As torch.profiler counts it, with and without the wait for the device in the end. Its recordings slow whatever this
  /// process launches afterwards.
  std::vector<Case> self_cpu_time(const Settings& settings);
  /// A Chrome trace of each row: <model>_<row>.json. The same applies.
  void write_traces(const std::filesystem::path& folder);

 private:
  void check();
  void step_torch_graph();
  void step_full_iteration();
  [[nodiscard]] std::vector<Contender> contenders();
  Case compare(const char* measure, const Timer& timer, const Plan& plan);
  Case compare_self_cpu(const char* measure, const Timer& timer, const Settings& settings);

  std::string model_;
  std::string title_;
  TrainingCase made_;
  std::vector<c10::IValue> microbatches_;
  Training eager_;
  Training theirs_;  // in torch's graph
  Training ours_;    // in FullIteration
  Training callable_;
  Training callables_;
  std::unique_ptr<at::cuda::CUDAGraph> torch_graph_;
  FullIteration full_iteration_;
};

}  // namespace pianola::bench::cuda
