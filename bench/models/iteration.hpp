#pragma once
#include "model.hpp"

#include <pianola/training/adam.hpp>
#include <pianola/training/finite_watch.hpp>
#include <pianola/training/grad_scaler.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace pianola::bench {

/// Where an iteration looks for NaN and infinity.
enum class Checks { nowhere, loss, loss_and_gradients };

/// A whole training iteration over microbatches, every part of it on the device: forward and backward, clipping, gradient
/// scaler, AdamW. Two of equal models are equal bit for bit.
class Iteration {
 public:
  /// `microbatches` are batches for the model, [microbatch, ...].
  Iteration(Model model, at::Tensor microbatches, Checks checks = Checks::loss);

  /// forward_backward() and update().
  /// @param microbatches  One tensor each; their target is the batch upside down.
  /// @return  The mean of the microbatches' losses.
  at::Tensor run(const std::vector<c10::IValue>& microbatches);
  void run() { loss_ = run(microbatches_); }
  /// Leaves gradients, scaled, in the parameters.
  at::Tensor forward_backward(const std::vector<c10::IValue>& microbatches);
  void forward_backward() { loss_ = forward_backward(microbatches_); }
  /// Clipping, scaler, optimizer and checks.
  void update(const at::Tensor& loss);
  void update() { update(loss_); }
  /// What training does after each iteration: has the device found NaN or infinity?
  void poll() { watch_.poll(); }

  [[nodiscard]] const std::vector<c10::IValue>& microbatches() const noexcept { return microbatches_; }
  /// All that an iteration writes and the next one reads.
  [[nodiscard]] std::vector<at::Tensor> state() const;

 private:
  Model model_;
  Checks checks_;
  std::vector<c10::IValue> microbatches_;
  AdamW adam_;
  GradScaler scaler_;
  FiniteWatch watch_;
  at::Tensor loss_;
};

}  // namespace pianola::bench
