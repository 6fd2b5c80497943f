// A step that reads a value on the host cannot be captured. The error says where and why, and nothing is left behind.
#include <pianola/pianola.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <cstdio>

int main() {
  const c10::Device device = c10::kCPU;  // the tape refuses what a CUDA graph would refuse
  at::Tensor weight = at::ones({4}, device);
  const auto step = [&] {
    weight.mul_(2);
    if (weight.sum().item<float>() > 100) weight.div_(10);  // a CPU decision: a graph would freeze it
  };

  pianola::Graph graph(device);
  try {
    graph.capture(step);
    return 1;
  } catch (const pianola::CaptureError& error) {
    std::printf("%s\n", error.what());
  }
  if (!at::equal(weight, at::ones({4}, device))) return 1;  // as before the attempt

  step();                                  // eager goes on working,
  graph.capture([&] { weight.mul_(2); });  // and so does the same graph
  graph.replay();
  std::printf("weight is %g, as 2 x 2 should be\n", weight.select(0, 0).item<double>());
  return weight.select(0, 0).item<double>() == 4 ? 0 : 1;
}
