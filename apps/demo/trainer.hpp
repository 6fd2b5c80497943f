#pragma once
#include <apps/demo/char_gpt.hpp>
#include <apps/demo/text.hpp>
#include <pianola/training/adam.hpp>
#include <pianola/training/learning_rate.hpp>
#include <pianola/training/learning_rate_schedule.hpp>
#include <pianola/training/static_inputs.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace pianola::demo {

struct TrainerConfig {
  CharGptConfig model = {};
  std::int64_t batch = 16;
  std::int64_t steps = 400;  ///< Length of the learning-rate schedule and of the record of losses.
  double peak_learning_rate = 4e-3;
  std::uint64_t seed = 1;
};

/// A linear warm-up to the base rate, then half a cosine down to `last`; `steps` steps in all.
[[nodiscard]] LearningRate warmup_and_cosine(std::int64_t steps, double last);

/// A model and what trains it, with a step that can run eagerly or be captured:
///
///     trainer.load(batches.next());    // into the static inputs
///     trainer.finish(trainer.step());  // or iteration(trainer.inputs()), where a pianola::FullIteration runs the step
///
/// Nothing in load(), step() and finish() waits for the device: losses go to a record there, which is read when it suits.
class Trainer {
 public:
  /// Seeds the default generators of all devices; trainers of equal configuration begin with equal bits.
  Trainer(const TrainerConfig& config, c10::Device device);

  /// Makes the batch the current one.
  void load(const BatchStream::Batch& batch);
  /// Forward, loss, backward, clipping and optimizer, all of it on the device; returns the loss.
  at::Tensor step(const std::vector<c10::IValue>& microbatches);
  /// Of the current batch.
  at::Tensor step() { return step(inputs_.microbatches()); }
  /// What follows a step, outside of a graph: notes its loss, and sets the learning rate of the next one.
  void finish(const at::Tensor& loss);

  /// Waits for the device.
  void wait() const;
  /// Losses of all finished steps: float32, on the device. To read them is to wait for it.
  [[nodiscard]] at::Tensor losses() const;
  /// What a step or the schedule changes: parameters, moments, step counters, learning rate.
  [[nodiscard]] std::vector<NamedTensor> tensors() const;
  /// The same with the losses and a copy of the state of the device's generator.
  [[nodiscard]] std::vector<NamedTensor> state() const;

  [[nodiscard]] StaticInputs& inputs() noexcept { return inputs_; }
  [[nodiscard]] const CharGpt& model() const noexcept { return model_; }
  [[nodiscard]] CharGpt& model() noexcept { return model_; }
  [[nodiscard]] c10::Device device() const noexcept { return device_; }

 private:
  c10::Device device_;
  CharGpt model_;
  AdamW optimizer_;
  LearningRateSchedule schedule_;
  StaticInputs inputs_;
  at::Tensor losses_;
};

}  // namespace pianola::demo
