#include <apps/demo/trainer.hpp>

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>

namespace pianola::demo {
namespace {

// Places in the record of losses beyond the last step: a capture runs the step a few times, and with branches replays it
// two dozen times at most, before it takes back what these runs wrote; in a short training they need a place too.
constexpr std::int64_t kSpareLosses = 64;

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

Trainer::Trainer(const TrainerConfig& config, c10::Device device)
    : config_(config),
      device_(seeded(device, config.seed)),
      model_(config.model, device),
      optimizer_(model_.parameters(), {}),
      inputs_(at::zeros({config.batch, config.model.context}, at::TensorOptions(device).dtype(at::kLong))),
      targets_(at::zeros_like(inputs_)),
      losses_(at::zeros({config.steps + kSpareLosses}, at::TensorOptions(device).dtype(at::kFloat))),
      steps_done_(at::zeros({1}, at::TensorOptions(device).dtype(at::kLong))) {}

void Trainer::load(const BatchStream::Batch& batch) {
  inputs_.copy_(batch.inputs);
  targets_.copy_(batch.targets);
  optimizer_.set_learning_rate(learning_rate(loaded_++, config_.steps, config_.peak_learning_rate));
}

void Trainer::step() {
  const at::Tensor logits = model_.logits(inputs_, CharGpt::Mode::train);
  const at::Tensor loss = at::cross_entropy_loss(logits.view({-1, config_.model.vocabulary}), targets_.view({-1}));
  // Not loss.backward(): that goes through nodes which remember the stream on which a parameter was first used.
  const auto gradients = torch::autograd::grad({loss}, tensors_of(model_.parameters()));
  optimizer_.step(gradients);
  // Note [Losses stay on the device]
  // The step writes its loss into a record at the place that a counter on the device names. A place counted on the host
  // would be frozen by a capture, and a loss read on the host would make it wait for the device at each step.
  const c10::NoGradGuard no_grad;
  losses_.index_copy_(0, steps_done_, loss.view({1}));
  steps_done_.add_(1);
}

void Trainer::wait() const { static_cast<void>(steps_done_.item<std::int64_t>()); }

at::Tensor Trainer::losses() const { return losses_.narrow(0, 0, loaded_); }

std::vector<NamedTensor> Trainer::tensors() const {
  std::vector<NamedTensor> tensors = {{.name = "losses", .tensor = losses_},
                                      {.name = "steps_done", .tensor = steps_done_}};
  for (const NamedTensor& parameter : model_.parameters()) tensors.push_back(parameter);
  for (const NamedTensor& moment : optimizer_.state()) tensors.push_back(moment);
  return tensors;
}

std::vector<NamedTensor> Trainer::state() const {
  std::vector<NamedTensor> state = tensors();
  state.front().tensor = losses();
  at::Generator generator = at::globalContext().defaultGenerator(device_);
  const std::lock_guard lock(generator.mutex());
  state.push_back({.name = "generator", .tensor = generator.get_state()});
  return state;
}

}  // namespace pianola::demo
