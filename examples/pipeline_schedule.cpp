// One rank of a pipeline: two chunks of two layers, called in the order of a schedule. The other ranks are played by
// fixed tensors: what they send forward, and the gradients that they send back.
#include <pianola/pianola.hpp>
#include <pianola/schedule/schedule_drawing.hpp>

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace {

constexpr std::int64_t kWidth = 32;

struct Layer : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return dropout(torch::gelu(linear(x))) + x; }

  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.1));
};

using Layers = std::vector<std::shared_ptr<Layer>>;

Layers make_layers(int count, const torch::Device& device) {
  torch::manual_seed(1);
  Layers layers;
  for (int i = 0; i < count; ++i) {
    layers.push_back(std::make_shared<Layer>());
    layers.back()->to(device);
  }
  return layers;
}

std::vector<torch::Tensor> gradients_of(const Layers& layers) {
  std::vector<torch::Tensor> gradients;
  for (const auto& layer : layers) {
    for (const torch::Tensor& parameter : layer->parameters()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

bool all_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) equal = torch::equal(a[i], b[i]);
  return equal;
}

}  // namespace

int main() {
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  const auto schedule = pianola::Schedule::interleaved(
      {.pipeline_size = 2, .virtual_size = 2, .microbatches = 4, .rank = 0}, {.layers_per_chunk = {2}});
  std::printf("%s\n", pianola::describe(schedule).c_str());

  const Layers layers = make_layers(schedule.total_layers(), device),
               twins = make_layers(schedule.total_layers(), device);
  const auto random = [&] { return torch::randn({8, kWidth}, device); };
  std::map<std::pair<int, int>, std::pair<torch::Tensor, torch::Tensor>> from_others;
  for (const pianola::ScheduleStep& step : schedule.steps()) {
    from_others[{step.chunk, step.microbatch}] = {random(), random()};
  }

  // [readme]
  const std::vector<pianola::Callable> callables(layers.begin(), layers.end());  // those of chunk 1, those of chunk 2
  const std::vector<std::vector<c10::IValue>> samples(callables.size(), {random().requires_grad_()});
  auto graphed = pianola::make_graphed_callables(callables, samples, {.schedule = schedule});

  const auto iteration = [&](auto&& call) {
    std::map<std::pair<int, int>, std::pair<torch::Tensor, torch::Tensor>> in_flight;  // input and output
    std::vector<torch::Tensor> to_others;
    for (const pianola::ScheduleStep& step : schedule.steps()) {
      const auto& [activation, gradient] = from_others.at({step.chunk, step.microbatch});
      auto& [input, output] = in_flight[{step.chunk, step.microbatch}];
      if (step.direction == pianola::Direction::forward) {
        input = output = activation.detach().requires_grad_();
        const int first = schedule.first_layer(step.chunk);
        for (int i = 0; i < schedule.layers(step.chunk); ++i) output = call(first + i, output);
        to_others.push_back(output.detach().clone());  // a later microbatch overwrites the output itself
      } else if (step.direction == pianola::Direction::backward) {
        output.backward(gradient);
        to_others.push_back(input.grad());
      }
    }
    return to_others;
  };
  const auto replayed = [&](int layer, const torch::Tensor& x) { return graphed[layer](x); };
  // [readme]
  const auto eager = [&](int layer, const torch::Tensor& x) { return twins[layer]->forward(x); };

  for (int chunk = 1; chunk <= schedule.chunks(); ++chunk) {
    const pianola::CallableInfo info = graphed[schedule.first_layer(chunk)].info();
    std::printf("chunk %d: %zu slots, so each of its layers has %zu graphs and %zu bytes of static buffers\n", chunk,
                info.slots, info.graphs, info.static_bytes);
  }
  std::printf("pool of all layers: %zu bytes\n", graphed.front().info().pool_bytes);

  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(step);
    const std::vector<torch::Tensor> actual = iteration(replayed);
    torch::manual_seed(step);
    if (!all_equal(actual, iteration(eager))) return 1;
    if (!all_equal(gradients_of(layers), gradients_of(twins))) return 1;
  }
  std::puts("3 iterations: what goes to other ranks, and the parameters' gradients, are as in eager, bit for bit");
}
