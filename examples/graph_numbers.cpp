// A graph whose numbers are others at each replay: a learning rate that follows a cosine.
#include <pianola/pianola.hpp>

#include <torch/torch.h>

#include <cmath>
#include <cstdio>

int main() {
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({64, 8}, device), y = torch::randn({64, 1}, device);
  const torch::Tensor weight = torch::zeros({8, 1}, device).requires_grad_();
  const torch::Tensor twin = weight.detach().clone().requires_grad_();

  // [readme]
  pianola::Graph graph(device);
  pianola::Number rate = graph.number("rate", 0.1), decay = graph.number("decay", 0.01);
  graph.capture([&] {
    const torch::Tensor loss = torch::mse_loss(x.mm(weight), y);
    const torch::Tensor gradient = torch::autograd::grad({loss}, {weight})[0];
    const torch::NoGradGuard no_grad;
    weight.mul_(1 - rate * decay);
    weight.sub_(gradient, rate);
  });
  for (int step = 0; step < 200; ++step) {
    rate.set(0.1 * std::cos(step * 0.0078));
    graph.replay();
  }
  // [readme]

  for (int step = 0; step < 200; ++step) {
    const double now = 0.1 * std::cos(step * 0.0078);
    const torch::Tensor loss = torch::mse_loss(x.mm(twin), y);
    const torch::Tensor gradient = torch::autograd::grad({loss}, {twin})[0];
    const torch::NoGradGuard no_grad;
    twin.mul_(1 - now * 0.01);
    twin.sub_(gradient, now);
  }
  if (!torch::equal(weight, twin)) return 1;
  std::printf("after 200 replays the weights are those of eager, bit for bit; the last rate was %.4f\n", rate.value());
}
