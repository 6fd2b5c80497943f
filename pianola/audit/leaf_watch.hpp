#pragma once
#include <pianola/audit/observed_run.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace pianola::auditing {

/// The leaves that require grad which the runs of a step use, and their gradients. Holds none of them.
class LeafWatch {
 public:
  /// @return  Its number; the same for all runs.
  std::size_t note(const at::Tensor& leaf);

  /// What the gradients are now, one entry per leaf: to be called when a run begins.
  [[nodiscard]] std::vector<GradientNote> at_begin() const;
  /// Completes what at_begin() gave; leaves that the run used for the first time are added.
  void at_end(std::vector<GradientNote>& notes) const;

 private:
  struct Leaf {
    WeakTensor tensor;
    const c10::TensorImpl* impl;
  };
  [[nodiscard]] static Memory gradient_of(const Leaf& leaf);

  std::vector<Leaf> leaves_;
  ska::flat_hash_map<const c10::TensorImpl*, std::size_t> leaf_at_;
};

}  // namespace pianola::auditing
