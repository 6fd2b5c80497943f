#pragma once
#include "model.hpp"

#include <pianola/training/adam.hpp>
#include <pianola/training/finite_watch.hpp>
#include <pianola/training/grad_scaler.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace pianola::bench {

/// What of an iteration is left out; its other parts are forward, backward, and AdamW.
struct IterationParts {
  bool scaler = true;
  bool clipping = true;
  bool checks = true;  ///< NaN and infinity in the loss.
};

/// A whole training iteration over microbatches, every part of it on the device. Two of equal models are equal bit for bit.
class Iteration {
 public:
  /// `microbatches` are batches for the model, [microbatch, ...].
  Iteration(Model model, at::Tensor microbatches, const IterationParts& parts = {});

  /// @param microbatches  One tensor each; their target is the batch upside down.
  at::Tensor run(const std::vector<c10::IValue>& microbatches);
  void run() { loss_ = run(microbatches_); }

  [[nodiscard]] const std::vector<c10::IValue>& microbatches() const noexcept { return microbatches_; }
  /// All that an iteration writes and the next one reads.
  [[nodiscard]] std::vector<at::Tensor> state() const;

 private:
  Model model_;
  IterationParts parts_;
  std::vector<c10::IValue> microbatches_;
  AdamW adam_;
  GradScaler scaler_;
  FiniteWatch watch_;
  at::Tensor loss_;
};

}  // namespace pianola::bench
