#include <pianola/graph/account/executable_forecast.hpp>

#include <pianola/trace/op_info.hpp>

#include <string_view>

namespace pianola::graph {
namespace {

constexpr std::uint64_t kBytesOfNode = 3'300;
constexpr std::uint64_t kUnit = 2U << 20U;
// cuDNN brings tensors into another layout, and back, and finds gradients of inputs and weights by kernels of their own.
constexpr std::uint64_t kNodesOfConvolution = 4, kNodesOfItsBackward = 8;
// Torch's kernels over lists of tensors take so many tensors, and so many bytes, at a time.
constexpr std::uint64_t kTensorsOfNode = 100, kBytesOfTensorsOfNode = 160U << 20U;

std::uint64_t nodes_of(const OpRecord& op, const OpTrace& trace) {
  if (op.info->is_view || op.info->is_empty) return 0;
  const std::string_view name = op.info->schema().name();
  if (name == "aten::convolution") return kNodesOfConvolution;
  if (name == "aten::convolution_backward") return kNodesOfItsBackward;
  if (name.find("_foreach_") == std::string_view::npos) return 1;
  std::uint64_t bytes = 0, tensors = 0;
  for (const TensorRecord& tensor : trace.inputs(op)) {
    bytes += tensor.span_bytes;
    ++tensors;
  }
  return 1 + tensors / kTensorsOfNode + bytes / kBytesOfTensorsOfNode;
}

}  // namespace

std::uint64_t forecast_executable(const OpTrace& trace) {
  return forecast_executable(trace, [](std::size_t) { return true; });
}

std::uint64_t forecast_executable(const OpTrace& trace, const std::function<bool(std::size_t operation)>& inside) {
  std::uint64_t nodes = 0;
  for (std::size_t i = 0; i < trace.ops().size(); ++i) {
    if (inside(i)) nodes += nodes_of(trace.ops()[i], trace);
  }
  return (nodes * kBytesOfNode + kUnit - 1) / kUnit * kUnit;
}

}  // namespace pianola::graph
