#pragma once
#include <apps/demo/adamw.hpp>
#include <apps/demo/char_gpt.hpp>
#include <apps/demo/text.hpp>

#include <ATen/core/Tensor.h>
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

/// A model, its optimizer and its static inputs, with a training step that can run eagerly or be captured:
///
///     trainer.load(batches.next());  // fills the static inputs
///     trainer.step();                // or graph.replay(), after graph.capture([&] { trainer.step(); })
///
/// Nothing in load() and step() waits for the device: losses go to a record there, which is read when it suits.
class Trainer {
 public:
  /// Seeds the default generators of all devices; trainers of equal configuration begin with equal bits.
  Trainer(const TrainerConfig& config, c10::Device device);

  /// Copies the batch into the static inputs and sets the learning rate of the coming step.
  void load(const BatchStream::Batch& batch);
  /// Forward, loss, backward, optimizer and a note of the loss, all of it on the device.
  void step();

  /// Waits for the device.
  void wait() const;
  /// Losses of all steps so far: float32, on the device. To read them is to wait for it.
  [[nodiscard]] at::Tensor losses() const;
  /// All that a step changes: losses, parameters, optimizer and the device's generator, as copies where it must be.
  [[nodiscard]] std::vector<NamedTensor> state() const;

  /// The same tensors themselves, but for the generator.
  [[nodiscard]] std::vector<NamedTensor> tensors() const;

  [[nodiscard]] const CharGpt& model() const noexcept { return model_; }
  [[nodiscard]] CharGpt& model() noexcept { return model_; }
  [[nodiscard]] c10::Device device() const noexcept { return device_; }

 private:
  TrainerConfig config_;
  c10::Device device_;
  CharGpt model_;
  AdamW optimizer_;
  at::Tensor inputs_;
  at::Tensor targets_;
  at::Tensor losses_;        // see Note [Losses stay on the device]
  at::Tensor steps_done_;    // int64 [1]
  std::int64_t loaded_ = 0;  // steps prepared on the host
};

}  // namespace pianola::demo
