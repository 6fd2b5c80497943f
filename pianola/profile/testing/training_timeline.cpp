#include <pianola/profile/testing/training_timeline.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace pianola::profiling::testing {
namespace {

constexpr std::int64_t kLaunch = 4, kDelay = 5, kNodeGap = 1, kWait = 3;
constexpr std::int64_t kMain = 1, kBackward = 2;  // threads

// Writes a run, with a clock of the host and one of the device.
class Run {
 public:
  explicit Run(const TrainingShape& shape) : shape_(shape) {
    timeline_.source = "a training run in round numbers";
    if (shape.device != 0) timeline_.devices = {{.total = static_cast<std::uint64_t>(bytes(shape.device))}};
  }

  Timeline take() {
    for (int i = 0; i < shape_.iterations; ++i) shape_.graphed ? graphed_iteration() : iteration(i);
    timeline_.sort();
    return std::move(timeline_);
  }

 private:
  struct Block {
    std::uint64_t address = 0;
    std::int64_t bytes = 0;
  };

  static Nanoseconds ns(std::int64_t us) { return us * 1000; }

  void range(HostRange::Kind kind, const std::string& name, std::int64_t begin, std::int64_t thread) {
    if (!shape_.ranges) return;
    timeline_.ranges.push_back(
        {.time = {ns(begin), ns(host_)}, .name = timeline_.intern(name), .kind = kind, .thread = thread});
  }

  void call(HostCall::Kind kind, const std::string& name, std::int64_t begin, std::int64_t end, std::int64_t thread,
            std::uint64_t correlation) {
    timeline_.calls.push_back({.time = {ns(begin), ns(end)},
                               .name = timeline_.intern(name),
                               .kind = kind,
                               .thread = thread,
                               .correlation = correlation});
  }

  void kernel(const std::string& name, std::int64_t begin, std::uint64_t graph) {
    device_ = begin + shape_.kernel;
    timeline_.work.push_back({.time = {ns(begin), ns(device_)},
                              .name = timeline_.intern(name),
                              .stream = 7,
                              .correlation = correlation_,
                              .graph = graph});
  }

  void launch(const std::string& name, std::int64_t thread) {
    ++correlation_;
    call(HostCall::Kind::launch, "cudaLaunchKernel", host_, host_ + kLaunch, thread, correlation_);
    kernel(name, std::max(host_ + kDelay, device_), 0);
    host_ += shape_.pace;
  }

  void wait(const char* operation) {
    const std::int64_t begin = host_;
    host_ = std::max(host_, device_) + kWait;
    call(HostCall::Kind::synchronize, "cudaStreamSynchronize", begin, host_, kMain, 0);
    range(HostRange::Kind::operation, operation, begin - 1, kMain);
  }

  static std::int64_t bytes(std::int64_t mib) { return mib << 20; }

  // Of `thread`, at the next launch or just before it.
  void allocate(const std::string& name, std::int64_t mib, std::int64_t thread) {
    if (!shape_.memory) return;
    blocks_[name] = {.address = ++last_address_, .bytes = bytes(mib)};
    account(ns(host_), blocks_[name], thread);
  }
  void free(const std::string& name, std::int64_t thread) {
    const auto block = blocks_.find(name);
    if (block == blocks_.end()) return;
    account(ns(host_) - 1, {.address = block->second.address, .bytes = -block->second.bytes}, thread);
    blocks_.erase(block);
  }
  void account(Nanoseconds time, const Block& block, std::int64_t thread) {
    allocated_ += block.bytes;
    timeline_.memory.push_back({.time = time,
                                .address = block.address,
                                .bytes = block.bytes,
                                .allocated = static_cast<std::uint64_t>(allocated_),
                                .reserved = static_cast<std::uint64_t>(bytes(TrainingMemory::reserved)),
                                .thread = thread});
  }
  static std::string of_layer(const char* what, int layer) { return fmt::format("{} {}", what, layer); }

  void free_gradients() {
    for (int layer = 0; layer < shape_.layers; ++layer) free(of_layer("gradient", layer), kMain);
  }

  void load_batch() {
    if (shape_.batch == 0) return;
    free("batch", kMain);
    allocate("batch", shape_.batch, kMain);
    ++correlation_;
    call(HostCall::Kind::copy, "cudaMemcpyAsync", host_, host_ + kLaunch, kMain, correlation_);
    kernel("Memcpy HtoD (Pinned -> Device)", std::max(host_ + kDelay, device_), 0);
    timeline_.work.back().kind = DeviceWork::Kind::copy;
    timeline_.work.back().bytes = static_cast<std::uint64_t>(bytes(shape_.batch));
    host_ += shape_.pace;
  }

  void forward(int extra) {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const std::int64_t begin = host_;
      allocate(of_layer("activation", layer), TrainingMemory::activation, kMain);
      allocate("scratch", TrainingMemory::scratch, kMain);
      for (int i = 0; i < shape_.kernels_per_layer; ++i) launch(fmt::format("forward_{}", i % 3), kMain);
      free("scratch", kMain);
      range(HostRange::Kind::module, fmt::format("nn.Module: Block_{}", layer), begin, kMain);
    }
    for (int i = 0; i < extra; ++i) launch("extra", kMain);
  }

  void begin_backward(int layer) {
    allocate("scratch", TrainingMemory::scratch, kBackward);
    allocate(of_layer("gradient", layer), TrainingMemory::gradient, kBackward);
    allocate(of_layer("input gradient", layer), TrainingMemory::input_gradient, kBackward);
  }

  void end_backward(int layer) {
    free("scratch", kBackward);
    free(of_layer("activation", layer), kBackward);
    free(of_layer("input gradient", layer + 1), kBackward);
    if (layer == 0) free(of_layer("input gradient", layer), kBackward);
  }

  void backward() {
    const int kernels = 2 * shape_.kernels_per_layer;  // of a layer
    for (int i = 0; i < shape_.layers * kernels; ++i) {
      const std::int64_t begin = host_;
      const int layer = shape_.layers - 1 - i / kernels;
      if (i % kernels == 0) begin_backward(layer);
      launch(fmt::format("backward_{}", i % 5), kBackward);
      if (i % kernels == kernels - 1) end_backward(layer);
      range(HostRange::Kind::backward, "autograd::engine::evaluate_function: BlockBackward0", begin, kBackward);
    }
  }

  void optimize() {
    const std::int64_t begin = host_;
    allocate("optimizer", TrainingMemory::optimizer, kMain);
    for (int i = 0; i < shape_.optimizer_kernels; ++i) launch("multi_tensor_apply_kernel", kMain);
    free("optimizer", kMain);
    range(HostRange::Kind::annotation, "Optimizer.step#AdamW.step", begin, kMain);
  }

  void pause() {
    host_ += shape_.pause - shape_.data;
    const std::int64_t begin = host_;
    host_ += shape_.data;
    if (shape_.data != 0) {
      range(HostRange::Kind::annotation, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, kMain);
    }
  }

  void iteration(int number) {
    pause();
    free_gradients();
    load_batch();
    forward(shape_.extra_kernels * (number % 3));
    if (shape_.reads_inside) wait("aten::item");
    backward();
    optimize();
    if (shape_.reads_loss) wait("aten::item");
  }

  void graphed_iteration() {
    pause();
    ++correlation_;
    call(HostCall::Kind::graph_launch, "cudaGraphLaunch", host_, host_ + kLaunch, kMain, correlation_);
    std::int64_t begin = std::max(host_ + kDelay, device_ + kNodeGap);
    host_ += shape_.pace;
    const int kernels = 3 * shape_.layers * shape_.kernels_per_layer + shape_.optimizer_kernels;
    for (int i = 0; i < kernels; ++i) {
      kernel(fmt::format("node_{}", i), begin, 9);
      begin = device_ + kNodeGap;
    }
  }

  TrainingShape shape_;
  Timeline timeline_;
  std::int64_t host_ = 1000, device_ = 0;
  std::uint64_t correlation_ = 0, last_address_ = 0;
  std::map<std::string, Block> blocks_;
  std::int64_t allocated_ = bytes(TrainingMemory::parameters);
};

}  // namespace

Timeline training_timeline(const TrainingShape& shape) { return Run(shape).take(); }

}  // namespace pianola::profiling::testing
