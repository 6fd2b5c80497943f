// A small network learns on all GPUs of a machine, or by two processes on the CPU, eagerly and with each step one graph per rank.
// The gradients are averaged over the ranks while the backward pass runs. The weights are the same, bit for bit.
//
//     torchrun --no-python --standalone --nproc-per-node 2 data_parallel
#include <pianola/distributed/gradient_reducer.hpp>
#include <pianola/distributed/process_group.hpp>
#include <pianola/pianola.hpp>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int kSteps = 60, kBatch = 32, kInputs = 16, kWidth = 64;

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// One GPU for each process of a machine; torchrun numbers them.
torch::Device device_of_this_rank() {
  if (!torch::cuda::is_available()) return torch::kCPU;
  const char* const local = std::getenv("LOCAL_RANK");
  const auto index = static_cast<c10::DeviceIndex>(local == nullptr ? 0 : std::stoi(local));
  return {torch::kCUDA, index};
}

// Other weights on each rank: those of rank 0 are copied.
torch::nn::Sequential network(int rank, torch::Device device) {
  torch::manual_seed(rank);
  torch::nn::Sequential layers(torch::nn::Linear(kInputs, kWidth), torch::nn::GELU(), torch::nn::Linear(kWidth, kWidth),
                               torch::nn::GELU(), torch::nn::Linear(kWidth, 1));
  layers->to(device);
  return layers;
}

// [readme]
struct Training {
  Training(torch::Device device, const Group& group)
      : model(network(group->getRank(), device)),
        reducer(model->parameters(), group),
        optimizer(model->parameters(), {.lr = 3e-3}) {}

  c10::IValue step(const std::vector<c10::IValue>& microbatches) {
    const auto& parts = microbatches.front().toTupleRef().elements();
    optimizer.zero_grad();
    reducer.begin();  // before the forward pass
    const torch::Tensor loss = torch::mse_loss(model->forward(parts[0].toTensor()), parts[1].toTensor());
    loss.backward();  // gradients are those of all ranks when it returns
    optimizer.step();
    return loss.detach();
  }

  torch::nn::Sequential model;
  pianola::distributed::GradientReducer reducer;
  pianola::AdamW optimizer;
};
// [readme]

// Other ones on each rank.
std::vector<c10::IValue> batch(int step, int rank, torch::Device device) {
  torch::manual_seed(1000 * (rank + 1) + step);
  const torch::Tensor x = torch::randn({kBatch, kInputs}).to(device);
  return {c10::ivalue::Tuple::create(x, x.narrow(1, 0, 1).sin())};
}

}  // namespace

int main() {
  const torch::Device device = device_of_this_rank();
  const c10::OptionalDeviceGuard on_device(device);
  const Group group = pianola::distributed::process_group_from_environment(device.type());
  const int rank = group->getRank();
  Training eager(device, group), graphed(device, group);
  pianola::FullIteration iteration([&](const std::vector<c10::IValue>& data) { return graphed.step(data); });
  bool same = true;
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto data = batch(step, rank, device);
    const torch::Tensor expected = eager.step(data).toTensor(), loss = iteration(data).toTensor();
    same = same && torch::equal(loss, expected);
    (step == 0 ? first : last) = loss.item<double>();
  }
  const auto weights = graphed.model->parameters(), expected = eager.model->parameters();
  for (std::size_t i = 0; i < weights.size(); ++i) same = same && torch::equal(weights[i], expected[i]);
  const std::size_t replays = iteration.info().signatures.front().replays;
  std::printf("rank %d of %d on %s: loss %.4f to %.4f, %zu of %d steps replayed\n", rank, group->getSize(),
              device.str().c_str(), first, last, replays, kSteps);
  std::printf("rank %d of %d: losses and weights are %sthose of eager, bit for bit\n", rank, group->getSize(),
              same ? "" : "NOT ");
  pianola::drop_graphs_of_group(group->getGroupName());  // NCCL would wait for them
  group->shutdown();
  return same && replays != 0 && last < first ? 0 : 1;
}
