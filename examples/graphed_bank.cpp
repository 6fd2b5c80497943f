// Graphs without a word about them: what is called often enough with the same signature is captured and replayed.
#include <pianola/pianola.hpp>
#include <pianola/training/host_step.hpp>

#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <string>

namespace {

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::gelu(in(x))); }

  torch::nn::Linear in = register_module("in", torch::nn::Linear(16, 64));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(64, 1));
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

  // [readme]
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  torch::optim::StepLR scheduler(optimizer, 50, 0.5);
  auto step = pianola::graphed([&](const torch::Tensor& x) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(net->forward(x), target(x));
    loss.backward();
    pianola::step(optimizer);  // its bias corrections are those of each call
    pianola::step(scheduler, optimizer);
    return loss;
  });
  auto serve = pianola::graphed(net, {.capacity = 4});

  torch::manual_seed(2);
  for (int i = 0; i < 200; ++i) step(torch::randn({32, 16}, device));  // three eager steps, then one launch per step
  {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 40; ++i) serve(torch::randn({1 + i % 2, 16}, device));  // two shapes: two graphs, one pool
  }
  std::puts(step.info().report().to_text().c_str());
  std::puts(serve.info().report().to_text().c_str());
  // [readme]

  torch::manual_seed(2);
  torch::optim::AdamW eager(twin->parameters(), torch::optim::AdamWOptions(0.01));
  torch::optim::StepLR rates(eager, 50, 0.5);
  for (int i = 0; i < 200; ++i) {
    const torch::Tensor x = torch::randn({32, 16}, device);
    eager.zero_grad();
    torch::mse_loss(twin->forward(x), target(x)).backward();
    eager.step();
    rates.step();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    if (!torch::equal(net->parameters()[i], twin->parameters()[i])) return 1;
  }
  std::puts("the parameters are those of the twin, which trained eagerly, bit for bit");
}
