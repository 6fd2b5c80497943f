#include <pianola/pianola.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include <cstdio>

// What an installed Pianola has to offer: headers, symbols, and a torch that is found again.
int main() {
  const at::Tensor x = at::ones({4});
  at::Tensor y;
  pianola::Graph graph(c10::Device(c10::kCPU));
  graph.capture([&] { y = x.mul(2); });
  x.fill_(21);
  graph.replay();
  const bool right = y.sum().item<float>() == 4 * 42;

  bool refused = false;
  try {
    pianola::Graph(c10::Device(c10::kCPU)).replay();
  } catch (const pianola::UsageError&) {
    refused = true;  // the type of an exception is the same on both sides of the library's border
  }
  std::puts(right && refused ? "ok" : "wrong");
  return right && refused ? 0 : 1;
}
