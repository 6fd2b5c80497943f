// Trains a small network, eagerly or with its whole iteration in one graph: a program to profile, as docs/guide/profile.md does.
//
//     train_mlp [--graph]
#include <pianola/pianola.hpp>

#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr int kLayers = 16, kWidth = 64, kBatch = 32, kSteps = 300;

torch::nn::Sequential network(torch::Device device) {
  torch::nn::Sequential layers;
  for (int i = 0; i < kLayers; ++i) {
    layers->push_back(torch::nn::Linear(kWidth, kWidth));
    layers->push_back(torch::nn::ReLU());
  }
  layers->push_back(torch::nn::Linear(kWidth, 1));
  layers->to(device);
  return layers;
}

struct Training {
  explicit Training(torch::Device device) : model(network(device)) {}

  c10::IValue step(const std::vector<c10::IValue>& microbatches) {
    optimizer.zero_grad();
    const auto& parts = microbatches.front().toTupleRef().elements();
    torch::Tensor loss = torch::mse_loss(model->forward(parts[0].toTensor()), parts[1].toTensor());
    loss.backward();
    optimizer.step();
    return loss.detach();
  }

  torch::nn::Sequential model;
  pianola::AdamW optimizer{model->parameters(), {.lr = 1e-3}};
};

}  // namespace

int main(int count, char** arguments) {
  const bool graph = count > 1 && std::strcmp(arguments[1], "--graph") == 0;
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  torch::manual_seed(0);
  Training training(device);
  pianola::FullIteration iteration(
      [&](const std::vector<c10::IValue>& microbatches) { return training.step(microbatches); },
      {.output = pianola::OutputPolicy::clone});
  const torch::Tensor x = torch::randn({8, kBatch, kWidth}, device);
  const torch::Tensor y = x.sum(2, true).sin();
  std::vector<torch::Tensor> losses;
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) {
    if (i == kSteps / 2) {  // warm by now
      losses.back().item();
      start = std::chrono::steady_clock::now();
    }
    const std::vector<c10::IValue> microbatches = {c10::ivalue::Tuple::create(x[i % 8], y[i % 8])};
    losses.push_back((graph ? iteration(microbatches) : training.step(microbatches)).toTensor());
  }
  const double first = losses.front().item<double>(), last = losses.back().item<double>();
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;
  std::printf("loss %.4f -> %.4f, %.0f us per step\n", first, last, taken.count() / (kSteps - kSteps / 2));
  return last < first / 2 ? 0 : 1;
}
