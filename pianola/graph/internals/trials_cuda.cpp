#include <pianola/graph/graph.hpp>
#include <pianola/graph/internals/trials.hpp>
#include <pianola/torch_abi/cuda/workspace_table.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <shared_mutex>
#include <tuple>

namespace pianola::graph {
namespace {

bool has_workspace(cudaStream_t stream) {
  at::cuda::WorkspaceMapWithMutex& table = at::cuda::cublas_handle_stream_to_workspace();
  const std::shared_lock lock(table.mutex);
  for (const auto& [key, workspace] : table.map) {
    if (std::get<1>(key) == static_cast<void*>(stream) && torch_abi::memory_of(workspace).get() != nullptr) return true;
  }
  return false;
}

struct Broken : std::exception {};

}  // namespace

std::optional<std::string> try_broken_capture(c10::Device device) {
  const at::Tensor x = at::ones({8}, at::TensorOptions(device)), y = at::zeros_like(x);
  Graph graph(device);
  try {
    graph.capture([&] {
      y.copy_(x * 2);
      if (is_recording()) throw Broken();
    });
  } catch (const Broken&) {
    graph.capture([&] { y.copy_(x * 3); });
    graph.replay();
    return at::equal(y, x * 3) ? "" : "the capture after a broken one computed something else";
  }
  return "what a step threw while it was captured did not come out";
}

std::optional<std::string> try_blas_workspaces(c10::Device device) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
  const c10::cuda::CUDAStreamGuard on_stream(stream);
  const at::Tensor x = at::ones({64, 64}, at::TensorOptions(device));
  const at::Tensor product = at::mm(x, x);
  stream.synchronize();
  const bool expected = torch_abi::keeps_workspaces();
  if (has_workspace(stream.stream()) == expected) return "";
  return expected ? "a matrix product left none in torch's table"
                  : "torch keeps them in its table although it is set not to";
}

}  // namespace pianola::graph
