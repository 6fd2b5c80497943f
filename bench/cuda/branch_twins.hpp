#pragma once
#include "benchmark.hpp"
#include "models/whole_step.hpp"

#include <pianola/graph/graph.hpp>

#include <ATen/cuda/CUDAGraph.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pianola::bench::cuda {

inline constexpr int kBranches = 4;
inline constexpr const char* kInBranches = "branches = 4";

/// A step that is compared with itself in branches.
struct BranchWorkload {
  std::string name;                 ///< "training step: MLP 16 x 64, batch 32, SGD"
  std::function<WholeStep()> make;  ///< Equal ones at each call, on the device.
  double limit = 0;                 ///< In branches, of the step as captured; 0: there is no bar.
  int iterations = 50;
  bool deterministic =
      false;          ///< Ask torch for deterministic algorithms, for eager too, which differs from itself without.
  bool tf32 = true;   ///< Products in TF32, as training has them; false: in IEEE single precision.
  bool host = false;  ///< The host time of a launch is of interest as well.
};

/// The step as captured by torch, by Pianola, and by Pianola in branches: three twins, each with memory of its own, which
/// have computed what eager does, bit for bit, over several steps.
class BranchTwins {
 public:
  /// @throws Error  One of them computes something else than eager.
  explicit BranchTwins(const BranchWorkload& workload);

  /// Back to back, with the bar of the workload.
  Case device_time(const Settings& settings);
  /// Of one launch, with the bar that branches may take little more than the step as captured.
  Case host_time(const Settings& settings);

 private:
  Case compare(const char* measure, const Timer& timer, const Plan& plan);

  const BranchWorkload& workload_;
  WholeStep theirs_;
  WholeStep ours_;
  WholeStep branched_;
  std::unique_ptr<at::cuda::CUDAGraph> torch_graph_;
  Graph serial_;
  Graph branches_;
};

/// What each of several runs put out, and all that the last one left; random numbers always begin alike.
std::vector<at::Tensor> seeded_steps(const std::function<void()>& run, const WholeStep& step);

/// What came of CaptureOptions::branches, a sentence each.
std::vector<std::string> branch_notes(const std::optional<BranchInfo>& branches);

}  // namespace pianola::bench::cuda
