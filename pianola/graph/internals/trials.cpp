#include <pianola/graph/graph.hpp>
#include <pianola/graph/internals/trials.hpp>
#include <pianola/torch_abi/autograd_node.hpp>
#include <pianola/trace/allocation_log.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/storage_bytes.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#if PIANOLA_WITH_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace pianola::graph {
namespace {

class SeenNames final : public trace::OpObserver {
 public:
  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override {
    (op.backward == nullptr ? forward : backward).push_back(op.info->schema().name());
  }
  std::vector<std::string> forward, backward;
};

std::optional<std::string> try_operations(c10::Device device) {
  const at::Tensor x = at::ones({2}, at::TensorOptions(device));
  SeenNames seen;
  {
    const trace::OpStream stream({&seen});
    (x * 3).add_(1);
  }
  if (seen.forward == std::vector<std::string>{"aten::mul", "aten::add_"}) return "";
  return fmt::format("'(x * 3).add_(1)' was seen as [{}]", fmt::join(seen.forward, ", "));
}

std::optional<std::string> try_backward(c10::Device device) {
  const at::Tensor x = at::ones({2}, at::TensorOptions(device)).requires_grad_();
  SeenNames seen;
  {
    const trace::OpStream stream({&seen});
    torch::autograd::backward({(x * 3).sum()}, {});
  }
  if (std::count(seen.backward.begin(), seen.backward.end(), "aten::mul") == 1) return "";
  return fmt::format("the backward pass of '(x * 3).sum()' was seen as [{}]", fmt::join(seen.backward, ", "));
}

// While a log is open. Somebody's allocator in front of torch's tells nothing of torch's inside.
bool is_torchs_allocator(c10::Device device) {
#if PIANOLA_WITH_CUDA
  if (device.is_cuda()) return c10::cuda::CUDACachingAllocator::get()->name() == "native";
#endif
  return device.is_cuda() || trace::AllocatorWatch::sees_the_cpu();
}

std::optional<std::string> try_allocations(c10::Device device) {
  trace::AllocationLog log;
  if (!is_torchs_allocator(device)) return std::nullopt;
  const at::Tensor made = at::empty({64}, at::TensorOptions(device));
  return log.contains(made.data_ptr()) ? "" : "a new tensor's memory was not among what the allocator had handed out";
}

std::optional<std::string> try_accumulators(c10::Device device) {
  namespace impl = torch::autograd::impl;
  const at::Tensor leaf = at::ones({2}, at::TensorOptions(device)).requires_grad_();
  const torch_abi::NodeRef<> node = impl::grad_accumulator(leaf);
  if (node == nullptr || impl::try_get_grad_accumulator(leaf) != node)
    return "a leaf does not give back the accumulator that it has";
  impl::set_grad_accumulator(leaf, torch_abi::no_node());
  if (impl::try_get_grad_accumulator(leaf) != nullptr) return "a leaf keeps the accumulator that was taken from it";
  return impl::grad_accumulator(leaf) == node ? "a leaf that had lost its accumulator got the same one" : "";
}

// That a kernel's arguments are found in a captured graph, and can be changed.
std::optional<std::string> try_numbers(c10::Device device) {
  const at::Tensor x = at::ones({8}, at::TensorOptions(device)), y = at::zeros_like(x);
  Graph graph(device);
  Number factor = graph.number("factor", 0.25);
  graph.capture([&] { y.copy_(x * factor); });
  for (const double value : {0.625, -7.5}) {
    factor.set(value);
    graph.replay();
    if (!at::equal(y, x * value))
      return fmt::format("a replay that was given {} computed with {}", value, y[0].item<double>());
  }
  return "";
}

at::Generator make_generator(c10::Device device, std::uint64_t seed) {
#if PIANOLA_WITH_CUDA
  if (device.is_cuda()) {
    at::Generator generator = at::make_generator<at::CUDAGeneratorImpl>(device.index());
    generator.set_current_seed(seed);
    return generator;
  }
#endif
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

std::optional<std::string> try_random_numbers(c10::Device device) {
  constexpr int kSeed = 1234, kReplays = 3;
  at::Generator eager = make_generator(device, kSeed), graphed = make_generator(device, kSeed);
  const at::TensorOptions options(device);
  const at::Tensor drawn = at::zeros({8}, options);
  Graph graph(device);
  graph.capture([&] { drawn.copy_(at::rand({8}, graphed, options)); }, {.generators = {graphed}});
  for (int replay = 0; replay < kReplays; ++replay) {
    graph.replay();
    if (!at::equal(drawn, at::rand({8}, eager, options)))
      return fmt::format("replay {} drew other numbers than eager", replay + 1);
  }
  return at::equal(eager.get_state(), graphed.get_state())
             ? ""
             : "after the replays a generator stood elsewhere than after eager draws";
}

constexpr auto kTrials = std::to_array<Trial>({
  {"operations", "what a step runs; all else follows from it", true, false, try_operations},
      {"operations of backward passes", "the same on the threads of autograd", false, false, try_backward},
      {"memory that is handed out", "telling a step's memory from tensors of others", true, false, try_allocations},
      {"accumulators of gradients", "keeping what the warm-up computes out of .grad", true, false, try_accumulators},
      {"numbers of operations", "replays with another learning rate or position", true, false, try_numbers},
      {"random numbers of graphs", "dropout in replays that is eager's", true, false, try_random_numbers},
#if PIANOLA_WITH_CUDA
      {"broken captures", "a capture that fails and leaves the device as it was", false, true, try_broken_capture},
      {"workspaces of cuBLAS", "graphs that run at once, and parallel branches", false, true, try_blas_workspaces},
#endif
});

}  // namespace

std::span<const Trial> trials() { return kTrials; }

}  // namespace pianola::graph
