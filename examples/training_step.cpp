// A whole training step - forward, backward, update - as one graph.
#include <pianola/pianola.hpp>

#include <torch/torch.h>

#include <cstdio>

int main() {
  torch::manual_seed(0);
  // [readme]
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::GELU(), torch::nn::Linear(256, 1));
  model->to(device);
  torch::Tensor x = torch::zeros({32, 64}, device), y = torch::zeros({32, 1}, device), loss;

  pianola::Graph graph(device);  // a CUDA graph on a GPU, the tape on a CPU
  graph.capture([&] {            // warms up, records, and leaves the model as it was
    loss = torch::mse_loss(model->forward(x), y);
    const auto gradients = torch::autograd::grad({loss}, model->parameters());
    const torch::NoGradGuard no_grad;
    torch::_foreach_add_(model->parameters(), gradients, -0.05);
  });
  for (int step = 0; step <= 500; ++step) {
    x.normal_();  // new values in the same tensors
    y.copy_(x.select(1, 0).sin().unsqueeze(1));
    graph.replay();  // the whole step in one launch; the loss is the new one
    if (step % 100 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
  // [readme]
  return loss.item<double>() < 0.2 ? 0 : 1;
}
