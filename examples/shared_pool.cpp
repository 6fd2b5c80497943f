// One model for several batch sizes: a graph for each, all in one pool, so that they share the memory of activations.
#include <pianola/pianola.hpp>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include <cstdio>
#include <map>

namespace {

struct Served {
  at::Tensor input;
  at::Tensor output;
  pianola::Graph graph;
};

}  // namespace

int main() {
  const c10::NoGradGuard no_grad;
  const c10::Device device(at::hasCUDA() ? c10::kCUDA : c10::kCPU);
  const at::Tensor in = at::randn({1024, 256}, device);
  const at::Tensor out = at::randn({256, 1024}, device);
  const auto model = [&](const at::Tensor& x) { return at::linear(at::gelu(at::linear(x, in)), out); };

  const pianola::GraphPool pool(device);
  std::map<std::int64_t, Served> by_batch;
  for (const std::int64_t batch : {32, 8, 1}) {  // largest first: the smaller ones fit into its memory
    auto [place, inserted] =
        by_batch.emplace(batch, Served{at::randn({batch, 256}, device), {}, pianola::Graph(device)});
    Served& served = place->second;
    served.graph.capture([&] { served.output = model(served.input); }, {.pool = pool});
    std::printf("batch %2ld captured: the pool has %zu bytes\n", batch, pool.bytes());
  }

  for (const std::int64_t batch : {1, 32, 8, 1}) {
    Served& served = by_batch.at(batch);
    const at::Tensor request = at::randn({batch, 256}, device);
    served.input.copy_(request);
    served.graph.replay();
    // The next replay in this pool may overwrite the output: use it now, or clone it.
    if (!at::equal(served.output, model(request))) return 1;
    std::printf("batch %2ld served: as in eager, bit for bit\n", batch);
  }
}
