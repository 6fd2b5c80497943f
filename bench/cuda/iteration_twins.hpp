#pragma once
#include "benchmark.hpp"
#include "models/iteration.hpp"

#include <pianola/graph/graph.hpp>
#include <pianola/training/full_iteration.hpp>
#include <pianola/training/static_inputs.hpp>

#include <ATen/cuda/CUDAGraph.h>

#include <functional>
#include <memory>
#include <string>

namespace pianola::bench::cuda {

/// A training iteration that is compared with itself.
struct IterationWorkload {
  std::string name;                 ///< "MLP 16 x 64, 4 microbatches of 32, products in TF32"
  std::function<Iteration()> make;  ///< Equal ones at each call, on the device.
  bool tf32 = true;
  double branches_speedup = 0;  ///< In branches, over torch's way.
};

/// The iteration in each of the ways: twins, each with memory of its own, which have computed what eager does, bit for bit,
/// over several iterations. Torch's way has forward and backward in a graph, and what comes after them, which is one fused
/// call for AdamW, outside; in C++, where its calls cost the host less than in Python.
class IterationTwins {
 public:
  /// @throws Error  One of them computes something else than eager.
  explicit IterationTwins(const IterationWorkload& workload);

  /// Back to back, on the device or, where it is slower, on the host.
  Case device_time(const Settings& settings);
  /// Of a call among others.
  Case host_time(const Settings& settings);
  /// Of the first call after a wait for the device.
  Case first_call(const Settings& settings);

 private:
  // One that FullIteration runs.
  struct Whole {
    Whole(const std::function<Iteration()>& make, int branches);
    Iteration iteration;
    StaticInputs inputs;
    FullIteration graphed;
  };

  void check();
  Case compare(const char* measure, const Timer& timer, const Plan& plan);

  const IterationWorkload& workload_;
  Iteration eager_;
  Iteration bare_;
  Iteration theirs_;
  Whole static_;
  Whole tensors_;
  Whole branched_;
  Graph bare_graph_;
  std::unique_ptr<at::cuda::CUDAGraph> torch_graph_;
};

}  // namespace pianola::bench::cuda
