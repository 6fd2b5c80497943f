#include <pianola/profile/record/recorded_calls.hpp>

#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace pianola::profiling {
namespace {

using enum HostCall::Kind;

// <cuda.h> makes macros of some names, such as cuMemcpyAsync's relatives with _v2: a name is turned into text and pasted
// where it comes in, before it can be replaced.
#define PIANOLA_CALL_(kind, text, driver, id) \
  RecordedCall { driver, id, kind, text }
#define PIANOLA_RUNTIME_(kind, text, id) PIANOLA_CALL_(kind, text, false, CUPTI_RUNTIME_TRACE_CBID_##id)
#define PIANOLA_DRIVER_(kind, text, id) PIANOLA_CALL_(kind, text, true, CUPTI_DRIVER_TRACE_CBID_##id)
// An entry point by the version of its signature; one that exists once more for programs whose null stream is the
// thread's (ptsz, and ptds of those that wait).
#define RUNTIME(kind, name, version) PIANOLA_RUNTIME_(kind, #name, name##_##version)
#define RUNTIME_ASYNC(kind, name, version, per_thread_version) \
  PIANOLA_RUNTIME_(kind, #name, name##_##version), PIANOLA_RUNTIME_(kind, #name, name##_ptsz_##per_thread_version)
#define RUNTIME_WAITS(kind, name, version, per_thread_version) \
  PIANOLA_RUNTIME_(kind, #name, name##_##version), PIANOLA_RUNTIME_(kind, #name, name##_ptds_##per_thread_version)
#define DRIVER(kind, name) PIANOLA_CALL_(kind, #name, true, CUPTI_DRIVER_TRACE_CBID_##name)
#define DRIVER_V2(kind, name) PIANOLA_DRIVER_(kind, #name, name##_v2)
#define DRIVER_ASYNC(kind, name) DRIVER_(kind, #name, CUPTI_DRIVER_TRACE_CBID_##name, name##_ptsz)
#define DRIVER_V2_ASYNC(kind, name) \
  PIANOLA_DRIVER_(kind, #name, name##_v2), PIANOLA_DRIVER_(kind, #name, name##_v2_ptsz)
#define DRIVER_WAITS(kind, name) DRIVER_(kind, #name, CUPTI_DRIVER_TRACE_CBID_##name, name##_ptds)
#define DRIVER_V2_WAITS(kind, name) \
  PIANOLA_DRIVER_(kind, #name, name##_v2), PIANOLA_DRIVER_(kind, #name, name##_v2_ptds)
#define DRIVER_(kind, text, id, per_thread) PIANOLA_CALL_(kind, text, true, id), PIANOLA_DRIVER_(kind, text, per_thread)

constexpr std::array kCalls = std::to_array<RecordedCall>({
    // Launches. Compiled <<<>>> calls go through the one with underscores from CUDA 13 on.
    RUNTIME_ASYNC(launch, cudaLaunchKernel, v7000, v7000),
    {false, CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000, launch, "cudaLaunchKernel"},
    {false, CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_ptsz_v13000, launch, "cudaLaunchKernel"},
    RUNTIME_ASYNC(launch, cudaLaunchKernelExC, v11060, v11060),
    RUNTIME_ASYNC(launch, cudaLaunchCooperativeKernel, v9000, v9000),
    DRIVER_ASYNC(launch, cuLaunchKernel),
    DRIVER_ASYNC(launch, cuLaunchKernelEx),
    DRIVER_ASYNC(launch, cuLaunchCooperativeKernel),
    RUNTIME_ASYNC(graph_launch, cudaGraphLaunch, v10000, v10000),
    DRIVER_ASYNC(graph_launch, cuGraphLaunch),

    // Copies that return early. That of two devices' memories does so too, whatever its name says.
    RUNTIME_ASYNC(copy, cudaMemcpyAsync, v3020, v7000),
    RUNTIME_ASYNC(copy, cudaMemcpy2DAsync, v3020, v7000),
    RUNTIME_ASYNC(copy, cudaMemcpy3DAsync, v3020, v7000),
    RUNTIME_ASYNC(copy, cudaMemcpyToSymbolAsync, v3020, v7000),
    RUNTIME_ASYNC(copy, cudaMemcpyFromSymbolAsync, v3020, v7000),
    RUNTIME(copy, cudaMemcpyPeer, v4000),
    RUNTIME(copy, cudaMemcpyPeerAsync, v4000),
    RUNTIME_ASYNC(copy, cudaMemcpy3DPeerAsync, v4000, v7000),
    RUNTIME_ASYNC(copy, cudaMemcpyBatchAsync, v12080, v12080),
    RUNTIME_ASYNC(copy, cudaMemcpyBatchAsync, v13000, v13000),
    RUNTIME_ASYNC(copy, cudaMemcpy3DBatchAsync, v12080, v12080),
    RUNTIME_ASYNC(copy, cudaMemcpy3DBatchAsync, v13000, v13000),
    DRIVER_ASYNC(copy, cuMemcpyAsync),
    DRIVER_V2_ASYNC(copy, cuMemcpyHtoDAsync),
    DRIVER_V2_ASYNC(copy, cuMemcpyDtoHAsync),
    DRIVER_V2_ASYNC(copy, cuMemcpyDtoDAsync),
    DRIVER_V2_ASYNC(copy, cuMemcpy2DAsync),
    DRIVER_V2_ASYNC(copy, cuMemcpy3DAsync),
    DRIVER_WAITS(copy, cuMemcpyPeer),
    DRIVER_ASYNC(copy, cuMemcpyPeerAsync),
    DRIVER_ASYNC(copy, cuMemcpy3DPeerAsync),
    DRIVER_ASYNC(copy, cuMemcpyBatchAsync),
    DRIVER_V2_ASYNC(copy, cuMemcpyBatchAsync),
    DRIVER_ASYNC(copy, cuMemcpy3DBatchAsync),
    DRIVER_V2_ASYNC(copy, cuMemcpy3DBatchAsync),

    // Memsets: of memory of a device, none waits.
    RUNTIME_WAITS(copy, cudaMemset, v3020, v7000),
    RUNTIME_WAITS(copy, cudaMemset2D, v3020, v7000),
    RUNTIME_WAITS(copy, cudaMemset3D, v3020, v7000),
    RUNTIME_ASYNC(copy, cudaMemsetAsync, v3020, v7000),
    RUNTIME_ASYNC(copy, cudaMemset2DAsync, v3020, v7000),
    RUNTIME_ASYNC(copy, cudaMemset3DAsync, v3020, v7000),
    DRIVER_V2_WAITS(copy, cuMemsetD8),
    DRIVER_V2_WAITS(copy, cuMemsetD16),
    DRIVER_V2_WAITS(copy, cuMemsetD32),
    DRIVER_V2_WAITS(copy, cuMemsetD2D8),
    DRIVER_V2_WAITS(copy, cuMemsetD2D16),
    DRIVER_V2_WAITS(copy, cuMemsetD2D32),
    DRIVER_ASYNC(copy, cuMemsetD8Async),
    DRIVER_ASYNC(copy, cuMemsetD16Async),
    DRIVER_ASYNC(copy, cuMemsetD32Async),
    DRIVER_ASYNC(copy, cuMemsetD2D8Async),
    DRIVER_ASYNC(copy, cuMemsetD2D16Async),
    DRIVER_ASYNC(copy, cuMemsetD2D32Async),

    // What waits.
    RUNTIME(synchronize, cudaDeviceSynchronize, v3020),
    RUNTIME_ASYNC(synchronize, cudaStreamSynchronize, v3020, v7000),
    RUNTIME(synchronize, cudaEventSynchronize, v3020),
    RUNTIME_WAITS(synchronize, cudaMemcpy, v3020, v7000),
    RUNTIME_WAITS(synchronize, cudaMemcpy2D, v3020, v7000),
    RUNTIME_WAITS(synchronize, cudaMemcpy3D, v3020, v7000),
    RUNTIME_WAITS(synchronize, cudaMemcpyToSymbol, v3020, v7000),
    RUNTIME_WAITS(synchronize, cudaMemcpyFromSymbol, v3020, v7000),
    RUNTIME(synchronize, cudaFree, v3020),
    RUNTIME(synchronize, cudaFreeHost, v3020),
    DRIVER(synchronize, cuCtxSynchronize),
    DRIVER_V2(synchronize, cuCtxSynchronize),
    DRIVER_ASYNC(synchronize, cuStreamSynchronize),
    DRIVER(synchronize, cuEventSynchronize),
    DRIVER_WAITS(synchronize, cuMemcpy),
    DRIVER_V2_WAITS(synchronize, cuMemcpyHtoD),
    DRIVER_V2_WAITS(synchronize, cuMemcpyDtoH),
    DRIVER_V2_WAITS(synchronize, cuMemcpyDtoD),
    DRIVER_V2_WAITS(synchronize, cuMemcpy2D),
    DRIVER_V2_WAITS(synchronize, cuMemcpy3D),
    DRIVER_V2(synchronize, cuMemFree),
    DRIVER(synchronize, cuMemFreeHost),
});

#undef DRIVER_
#undef DRIVER_V2_WAITS
#undef DRIVER_WAITS
#undef DRIVER_V2_ASYNC
#undef DRIVER_ASYNC
#undef DRIVER_V2
#undef DRIVER
#undef RUNTIME_WAITS
#undef RUNTIME_ASYNC
#undef RUNTIME
#undef PIANOLA_DRIVER_
#undef PIANOLA_RUNTIME_
#undef PIANOLA_CALL_

// By CUPTI's numbers, since every record is looked up: the place in kCalls, from 1.
template <std::size_t kSize>
consteval std::array<std::uint8_t, kSize> places(bool driver) {
  static_assert(kCalls.size() < 256);
  std::array<std::uint8_t, kSize> index{};
  for (std::size_t i = 0; i < kCalls.size(); ++i) {
    if (kCalls[i].driver == driver) index[kCalls[i].id] = static_cast<std::uint8_t>(i + 1);
  }
  return index;
}

constexpr auto kRuntimePlaces = places<CUPTI_RUNTIME_TRACE_CBID_SIZE>(false);
constexpr auto kDriverPlaces = places<CUPTI_DRIVER_TRACE_CBID_SIZE>(true);

}  // namespace

std::span<const RecordedCall> recorded_calls() noexcept { return kCalls; }

bool is_watched(const RecordedCall& call) noexcept { return call.driver || call.kind != launch; }

const RecordedCall* find_call(bool driver, CUpti_CallbackId id) noexcept {
  if (id >= (driver ? kDriverPlaces.size() : kRuntimePlaces.size())) return nullptr;
  const std::uint8_t place = driver ? kDriverPlaces[id] : kRuntimePlaces[id];
  return place == 0 ? nullptr : &kCalls[place - 1U];
}

}  // namespace pianola::profiling
