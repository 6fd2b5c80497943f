#include "benchmark.hpp"
#include "cuda/branch_steps.hpp"
#include "cuda/branch_twins.hpp"
#include "cuda/device.hpp"

#include <c10/cuda/CUDACachingAllocator.h>

namespace pianola::bench::cuda {
namespace {

constexpr double kNoSlower = 1.01;

// Steps whose kernels fill the device, so that there is little to gain: branches must not cost anything.
std::vector<BranchWorkload> large_workloads() {
  return {
      {.name = "training step: MLP 16 x 2048, batch 256, SGD",
       .make = mlp_steps({.width = 2048, .batch = 256}, Update::sgd),
       .limit = kNoSlower,
       .iterations = 10},
      {.name = "training step: MLP 8 x 4096, batch 1024, SGD",
       .make = mlp_steps({.layers = 8, .width = 4096, .batch = 1024}, Update::sgd),
       .limit = kNoSlower,
       .iterations = 4},
      // Attention's backward splits long sequences, and adds the pieces up in any order unless told otherwise.
      {.name = "training step: transformer 8 x 1024, batch 8 x 256, SGD",
       .make = transformer_steps({.width = 1024, .heads = 8}, /*batch=*/8, /*length=*/256, Update::sgd),
       .limit = kNoSlower,
       .iterations = 4,
       .deterministic = true},
  };
}

}  // namespace

std::vector<Case> branches_large(const Settings& settings) {
  const OnPoolStream stream;
  std::vector<Case> cases;
  for (const BranchWorkload& workload : large_workloads()) {
    cases.push_back(BranchTwins(workload).device_time(settings));
    c10::cuda::CUDACachingAllocator::emptyCache();  // gigabytes, which the next one cuts differently
  }
  return cases;
}

}  // namespace pianola::bench::cuda
