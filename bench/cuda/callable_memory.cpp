#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "models/mlp.hpp"
#include "models/model.hpp"

#include <pianola/callable/graphed_callable.hpp>
#include <pianola/schedule/schedule.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace pianola::bench::cuda {
namespace {

constexpr int kPipelineSize = 2;
constexpr int kChunks = 2;  // on each rank
constexpr int kLayersPerChunk = 2;
constexpr std::int64_t kWidth = 256;

Schedule schedule(int rank, int microbatches) {
  return Schedule::interleaved(
      {.pipeline_size = kPipelineSize, .virtual_size = kChunks, .microbatches = microbatches, .rank = rank},
      {.layers_per_chunk = {kLayersPerChunk}});
}

// The chunks of one rank. What the other ranks send is a fixed batch.
struct Stage {
  Stage() {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      models.push_back(linear_chain(
          {.layers = kLayersPerChunk, .width = kWidth, .activation = Activation::gelu, .last = Activation::gelu},
          kDevice));
    }
  }

  void graph(const Schedule& order) {
    std::vector<Callable> layers;
    for (const Model& model : models) {
      std::vector<Callable> more = model.per_layer();
      std::move(more.begin(), more.end(), std::back_inserter(layers));
    }
    const std::vector<std::vector<c10::IValue>> samples(layers.size(), {input});
    callables = make_graphed_callables(std::move(layers), samples, {.schedule = order});
  }

  at::Tensor forward(const ScheduleStep& step) {
    const auto chunk = static_cast<std::size_t>(step.chunk - 1);
    if (callables.empty()) return models[chunk](input);
    at::Tensor x = input;
    for (std::size_t i = 0; i < kLayersPerChunk; ++i) x = callables[chunk * kLayersPerChunk + i](x);
    return x;
  }

  void train(const Schedule& order) {
    std::map<std::pair<int, int>, at::Tensor> outputs;
    for (const ScheduleStep& step : order.steps()) {
      at::Tensor& output = outputs[{step.chunk, step.microbatch}];
      if (step.direction == Direction::forward) {
        output = forward(step);
      } else {
        output.backward(gradient);
        output.reset();
      }
    }
  }

  [[nodiscard]] std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> gradients = {input.grad()};
    for (const Model& model : models) {
      for (const at::Tensor& parameter : model.parameters()) gradients.push_back(parameter.grad());
    }
    return gradients;
  }

  at::Tensor input = fixed_batch({32, kWidth}, kDevice).requires_grad_();
  at::Tensor gradient = fixed_batch({32, kWidth}, kDevice);
  std::vector<Model> models;
  std::vector<GraphedCallable> callables;
};

void check_gradients(Stage& graphed, const Schedule& order) {
  Stage eager;
  for (int iteration = 0; iteration < 2; ++iteration) {
    graphed.train(order);
    eager.train(order);
    check_equal("the pipeline stage", graphed.gradients(), eager.gradients());
  }
}

struct Bytes {
  double held = 0;  // by the callables, as they say themselves
  double allocated = 0;
  double reserved = 0;
};

Bytes allocator_bytes() {
  synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(kDevice.index());
  return {.held = 0,
          .allocated = static_cast<double>(stats.allocated_bytes[0].current),  // 0: all pools together
          .reserved = static_cast<double>(stats.reserved_bytes[0].current)};
}

Bytes capture_bytes(int rank, int microbatches) {
  const Schedule order = schedule(rank, microbatches);
  Stage stage;
  const Bytes before = allocator_bytes();
  stage.graph(order);
  const Bytes after = allocator_bytes();
  Bytes bytes{.held = static_cast<double>(stage.callables.front().info().pool_bytes),  // shared by all of them
              .allocated = after.allocated - before.allocated,
              .reserved = after.reserved - before.reserved};
  for (const GraphedCallable& callable : stage.callables) {
    bytes.held += static_cast<double>(callable.info().static_bytes);
  }
  check_gradients(stage, order);
  return bytes;
}

Case compare(int rank, const char* what, double six, double twelve) {
  Case result{
      .name = fmt::format("interleaved 1F1B, {} ranks of {} chunks: rank {}, {}", kPipelineSize, kChunks, rank, what),
      .measure = "memory that the capture takes",
      .unit = "bytes",
      .baseline = "6 microbatches",
      .iterations = 1,
      .series = {{"6 microbatches", {six}}, {"12 microbatches", {twelve}}}};
  result.requirements = {
      {.text = "12 microbatches: the bytes of 6", .measured = twelve - six, .limit = 0, .met = twelve == six}};
  return result;
}

}  // namespace

std::vector<Case> callable_memory(const Settings& /*settings*/) {
  const OnPoolStream stream;
  capture_bytes(/*rank=*/0, /*microbatches=*/6);  // settles: libraries take their workspaces once
  std::vector<Case> cases;
  for (int rank = 0; rank < kPipelineSize; ++rank) {
    const Bytes six = capture_bytes(rank, 6);
    const Bytes twelve = capture_bytes(rank, 12);
    cases.push_back(compare(rank, "pool and static tensors", six.held, twelve.held));
    cases.push_back(compare(rank, "allocated by torch", six.allocated, twelve.allocated));
    cases.push_back(compare(rank, "reserved by torch", six.reserved, twelve.reserved));
  }
  return cases;
}

}  // namespace pianola::bench::cuda
