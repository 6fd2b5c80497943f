#include <apps/demo/trainer.hpp>

#include <pianola/training/clip_grad.hpp>

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <mutex>

namespace pianola::demo {
namespace {

constexpr double kMostGradientNorm = 1.0;
constexpr AdamWOptions kOptimizer{.beta2 = 0.99, .weight_decay = 0.1};

c10::Device seeded(c10::Device device, std::uint64_t seed) {
  at::manual_seed(seed);
  return device;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(named.size());
  for (const NamedTensor& each : named) tensors.push_back(each.tensor);
  return tensors;
}

}  // namespace

LearningRate warmup_and_cosine(std::int64_t steps, double last) {
  const std::int64_t warmup = std::clamp<std::int64_t>(steps / 20, 1, 100);
  const auto fall = LearningRate::cosine(std::max<std::int64_t>(steps - warmup, 1), last);
  return LearningRate::warmup(warmup, fall, 1.0 / static_cast<double>(warmup));
}

Trainer::Trainer(const TrainerConfig& config, c10::Device device)
    : device_(seeded(device, config.seed)),
      model_(config.model, device),
      optimizer_(tensors_of(model_.parameters()), kOptimizer),
      schedule_(optimizer_, warmup_and_cosine(config.steps, config.peak_learning_rate / 10),
                {config.peak_learning_rate}),
      inputs_(device),
      losses_(at::zeros({config.steps}, at::TensorOptions(device).dtype(at::kFloat))) {}

void Trainer::load(const BatchStream::Batch& batch) {
  inputs_.load({c10::ivalue::Tuple::create(batch.inputs, batch.targets)});
}

at::Tensor Trainer::step(const std::vector<c10::IValue>& microbatches) {
  const auto& batch = microbatches.front().toTupleRef().elements();
  const at::Tensor logits = model_.logits(batch[0].toTensor(), CharGpt::Mode::train);
  const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), batch[1].toTensor().flatten());
  loss.backward();
  clip_grad_norm_(optimizer_, kMostGradientNorm);
  optimizer_.step();
  optimizer_.zero_grad();  // at the end: gradients are memory that only the step needs
  return loss.detach();
}

// Note [Losses stay on the device]
// A replay overwrites the loss of the one before, and reading it on the host would wait for the device at each step. A
// copy on the device does neither.
void Trainer::finish(const at::Tensor& loss) {
  losses_.select(0, schedule_.steps()).copy_(loss);
  schedule_.step();
}

void Trainer::wait() const { static_cast<void>(losses_.select(0, 0).item<float>()); }

at::Tensor Trainer::losses() const { return losses_.narrow(0, 0, schedule_.steps()); }

std::vector<NamedTensor> Trainer::tensors() const {
  std::vector<NamedTensor> tensors = model_.parameters();
  for (const NamedTensor& one : optimizer_.state()) tensors.push_back(one);
  return tensors;
}

std::vector<NamedTensor> Trainer::state() const {
  std::vector<NamedTensor> state = {{.name = "losses", .tensor = losses()}};
  for (const NamedTensor& one : tensors()) state.push_back(one);
  at::Generator generator = at::globalContext().defaultGenerator(device_);
  const std::lock_guard lock(generator.mutex());
  state.push_back({.name = "generator", .tensor = generator.get_state()});
  return state;
}

}  // namespace pianola::demo
