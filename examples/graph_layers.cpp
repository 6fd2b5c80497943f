// The layers of a model as graphs, each by itself: the loop around them stays as it is.
#include <pianola/pianola.hpp>

#include <torch/torch.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace {

struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x + dropout(down(torch::gelu(up(norm(x))))); }

  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(32, 64));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(64, 32));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.1));
};
TORCH_MODULE(Block);

struct Model {
  explicit Model(const torch::Device& device) {
    torch::manual_seed(1);
    for (int i = 0; i < 3; ++i) {
      blocks.emplace_back();
      blocks.back()->to(device);
      for (const torch::Tensor& one : blocks.back()->parameters()) parameters.push_back(one);
    }
  }

  std::vector<Block> blocks;
  std::vector<torch::Tensor> parameters;
};

// `call` runs a block, eagerly or by its graphs. Returns the last loss.
template <typename Call>
double train(const Model& model, const torch::Device& device, Call&& call) {
  torch::manual_seed(2);
  torch::optim::SGD optimizer(model.parameters, 0.05);
  torch::Tensor loss;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      torch::Tensor x = torch::randn({8, 32}, device);
      for (std::size_t i = 0; i < model.blocks.size(); ++i) x = call(i, x);
      loss = x.square().mean();
      loss.backward();
    }
    optimizer.step();
  }
  return loss.item<double>();
}

}  // namespace

int main() {
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  Model model(device), twin(device);
  std::vector<Block>& blocks = model.blocks;
  // [readme]
  pianola::GraphedLayers layers =
      pianola::graph_layers({{"block 1", blocks[0]}, {"block 2", blocks[1]}, {"block 3", blocks[2]}});
  const double loss = train(model, device, [&](std::size_t i, const torch::Tensor& x) { return layers[i](x); });
  std::printf("%sloss %.6f\n", layers.info().report().to_text().c_str(), loss);
  // [readme]
  const double expected =
      train(twin, device, [&](std::size_t i, const torch::Tensor& x) { return twin.blocks[i]->forward(x); });
  bool same = loss == expected;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    same = same && torch::equal(model.parameters[i], twin.parameters[i]);
  }
  std::printf("loss and weights are %sthose of eager, bit for bit\n", same ? "" : "NOT ");
  return same ? 0 : 1;
}
