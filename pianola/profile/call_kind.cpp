#include <pianola/profile/call_kind.hpp>

#include <cstddef>
#include <initializer_list>
#include <unordered_map>

namespace pianola::profiling {
namespace {

using Kind = HostCall::Kind;

struct Row {
  Kind kind;
  std::initializer_list<std::string_view> calls;
};

// Names of CUDA 13's and older cupti_runtime_cbid.h and cupti_driver_cbid.h.
const std::initializer_list<Row> kTable = {
    {Kind::launch,
     {"cudaLaunch", "cudaLaunchKernel", "__cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel",
      "cudaLaunchCooperativeKernelMultiDevice", "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync", "cuLaunchKernel",
      "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernelMultiDevice"}},
    {Kind::graph_launch, {"cudaGraphLaunch", "cuGraphLaunch"}},
    {Kind::copy,
     {"cudaMemcpyAsync",
      "cudaMemcpy2DAsync",
      "cudaMemcpy3DAsync",
      "cudaMemcpyPeerAsync",
      "cudaMemcpy3DPeerAsync",
      "cudaMemcpyToArrayAsync",
      "cudaMemcpyFromArrayAsync",
      "cudaMemcpy2DToArrayAsync",
      "cudaMemcpy2DFromArrayAsync",
      "cudaMemcpyToSymbolAsync",
      "cudaMemcpyFromSymbolAsync",
      "cudaMemcpyBatchAsync",
      "cudaMemcpy3DBatchAsync",
      "cudaMemPrefetchAsync",
      "cudaMemPrefetchBatchAsync",
      "cuMemcpyAsync",
      "cuMemcpyPeerAsync",
      "cuMemcpyHtoDAsync",
      "cuMemcpyDtoHAsync",
      "cuMemcpyDtoDAsync",
      "cuMemcpyHtoAAsync",
      "cuMemcpyAtoHAsync",
      "cuMemcpy2DAsync",
      "cuMemcpy3DAsync",
      "cuMemcpy3DPeerAsync",
      "cuMemcpyBatchAsync",
      "cuMemcpy3DBatchAsync",
      "cuMemPrefetchAsync",
      "cuMemPrefetchBatchAsync"}},
    // Between two places of a device or two devices, and memsets: asynchronous without the word.
    {Kind::copy,
     {"cudaMemcpyPeer",    "cudaMemcpy3DPeer", "cuMemcpyPeer",      "cuMemcpy3DPeer",    "cuMemcpyDtoD",
      "cuMemcpyDtoA",      "cuMemcpyAtoD",     "cuMemcpyAtoA",      "cudaMemset",        "cudaMemset2D",
      "cudaMemset3D",      "cudaMemsetAsync",  "cudaMemset2DAsync", "cudaMemset3DAsync", "cuMemsetD8",
      "cuMemsetD16",       "cuMemsetD32",      "cuMemsetD2D8",      "cuMemsetD2D16",     "cuMemsetD2D32",
      "cuMemsetD8Async",   "cuMemsetD16Async", "cuMemsetD32Async",  "cuMemsetD2D8Async", "cuMemsetD2D16Async",
      "cuMemsetD2D32Async"}},
    {Kind::synchronize,
     {"cudaDeviceSynchronize", "cudaThreadSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize",
      "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"}},
    {Kind::synchronize,
     {"cudaMemcpy", "cudaMemcpy2D", "cudaMemcpy3D", "cudaMemcpyToArray", "cudaMemcpyFromArray",
      "cudaMemcpyArrayToArray", "cudaMemcpy2DToArray", "cudaMemcpy2DFromArray", "cudaMemcpy2DArrayToArray",
      "cudaMemcpyToSymbol", "cudaMemcpyFromSymbol", "cuMemcpy", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyHtoA",
      "cuMemcpyAtoH", "cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy3D"}},
    // They wait until nothing uses the memory any more.
    {Kind::synchronize, {"cudaFree", "cudaFreeHost", "cuMemFree", "cuMemFreeHost"}},
};

bool drop_last(std::string_view& call, std::string_view suffix) noexcept {
  if (!call.ends_with(suffix)) return false;
  call.remove_suffix(suffix.size());
  return true;
}

bool drop_number(std::string_view& call) noexcept {
  const std::size_t last = call.find_last_not_of("0123456789");
  if (last == std::string_view::npos || last + 1 == call.size()) return false;
  std::string_view rest = call.substr(0, last + 1);
  if (!drop_last(rest, "_v")) return false;
  call = rest;
  return true;
}

}  // namespace

std::string_view without_version(std::string_view call) noexcept {
  while (drop_number(call) || drop_last(call, "_ptsz") || drop_last(call, "_ptds")) {
  }
  return call;
}

HostCall::Kind call_kind(std::string_view call) {
  static const auto kinds = [] {
    std::unordered_map<std::string_view, Kind> map;
    for (const Row& row : kTable) {
      for (const std::string_view name : row.calls) map.emplace(name, row.kind);
    }
    return map;
  }();
  const auto found = kinds.find(without_version(call));
  return found == kinds.end() ? Kind::other : found->second;
}

bool is_driver_call(std::string_view call) noexcept {
  return call.size() > 2 && call.starts_with("cu") && call[2] >= 'A' && call[2] <= 'Z';
}

}  // namespace pianola::profiling
