#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "models/mlp.hpp"

#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <stdexcept>

namespace pianola::bench::cuda {
namespace {

struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A way to fail. `model` outlives the capture, a copy of it within the step does not.
struct Failure {
  const char* name;
  std::function<void(Mlp& model)> step;
};

const Failure kFailures[] = {
    {"item() in the step",
     [](Mlp& model) {
       Mlp copy = model;
       copy.train_step();
       copy.loss().item();
     }},
    {"throw in the step",
     [](Mlp& model) {
       Mlp copy = model;
       copy.train_step();
       throw UserError("the user's own");
     }},
    {"item() in the step, whose loss the caller keeps",
     [](Mlp& model) {
       model.train_step();
       model.loss().item();
     }},
};

struct Memory {
  double allocated;
  double reserved;
  double taken;  // of the device, by anyone
};

Memory memory() {
  synchronize();
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(kDevice.index());
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {.allocated = static_cast<double>(stats.allocated_bytes[0].current),  // 0: all pools together
          .reserved = static_cast<double>(stats.reserved_bytes[0].current),
          .taken = static_cast<double>(total_bytes - free_bytes)};
}

void fail(const Failure& failure, Mlp& model, int times) {
  for (int i = 0; i < times; ++i) {
    Graph graph(kDevice);
    try {
      graph.capture([&] { failure.step(model); }, {.warmup = 0});
    } catch (const CaptureError&) {
      continue;
    } catch (const UserError&) {
      continue;
    }
    throw Error({.what = "a capture that has to fail did not"});
  }
}

void check_good_capture(Mlp& model, Mlp& eager) {
  Graph graph(kDevice);
  graph.capture([&] { model.train_step(); });
  for (int step = 0; step < 3; ++step) {
    graph.replay();
    eager.train_step();
    check_equal("the capture after the failures", model.state(), eager.state());
  }
}

Case growth(const Settings& settings, const Failure& failure) {
  Mlp model(MlpShape{}, kDevice);
  Mlp eager(MlpShape{}, kDevice);
  model.train_step();
  eager.train_step();
  const int times = settings.some(1000);
  fail(failure, model, 10);  // settles
  const Memory before = memory();
  fail(failure, model, times);
  const Memory after = memory();
  check_good_capture(model, eager);
  Case result{.name = failure.name,
              .measure = "growth of device memory",
              .unit = "bytes",
              .baseline = "",
              .iterations = times,
              .series = {{"allocated", {after.allocated - before.allocated}},
                         {"reserved", {after.reserved - before.reserved}},
                         {"taken of the device", {after.taken - before.taken}}}};
  result.requirements = {at_most(result, "allocated, reserved and free memory: no growth", 0)};
  return result;
}

}  // namespace

std::vector<Case> failed_capture(const Settings& settings) {
  const OnPoolStream stream;
  std::vector<Case> cases;
  for (const Failure& failure : kFailures) cases.push_back(growth(settings, failure));
  return cases;
}

}  // namespace pianola::bench::cuda
