// A module as graphs, one of its forward and one of its backward pass: loss, optimizer and loop stay as they are.
#include <pianola/pianola.hpp>

#include <torch/torch.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <vector>

namespace {

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return out(dropout(torch::gelu(in(x)))); }

  torch::nn::Linear in = register_module("in", torch::nn::Linear(16, 128));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.1));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(128, 1));
};

std::shared_ptr<Net> make_net(const torch::Device& device) {
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  net->to(device);
  return net;
}

torch::Tensor target(const torch::Tensor& x) { return x.slice(1, 0, 4).sin().sum(1, /*keepdim=*/true); }

}  // namespace

int main() {
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  const auto net = make_net(device), twin = make_net(device);
  const torch::Tensor held_out = torch::randn({64, 16}, device);
  const auto batch = [&] { return torch::randn({64, 16}, device); };

  // [readme]
  const auto train = [&](auto& module, auto&& model) {  // `model` is the module itself, or its graphs
    torch::manual_seed(2);
    torch::optim::AdamW optimizer(module.parameters(), torch::optim::AdamWOptions(5e-3));
    for (int step = 1; step <= 300; ++step) {
      optimizer.zero_grad();
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        const torch::Tensor x = batch();
        const torch::Tensor loss = torch::mse_loss(model(x), target(x)) / 2;
        loss.backward();
      }
      optimizer.step();
      if (step % 100 != 0) continue;
      module.eval();
      const torch::NoGradGuard no_grad;
      const torch::Tensor loss = torch::mse_loss(model(held_out), target(held_out));
      std::printf("step %d  loss %.4f\n", step, loss.item<double>());
      module.train();
    }
  };
  pianola::GraphedCallable graphed = pianola::make_graphed_callable(net, {batch()}, {.evaluation = true});
  train(*net, graphed);  // one launch per forward pass, one per backward pass
  // [readme]

  std::puts("the twin, eagerly:");
  train(*twin, [&](const torch::Tensor& x) { return twin->forward(x); });
  const std::vector<torch::Tensor> trained = net->parameters(), expected = twin->parameters();
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (!torch::equal(trained[i], expected[i])) return 1;
  }
  std::printf("%zu parameters are those of the twin, bit for bit\n", trained.size());
}
