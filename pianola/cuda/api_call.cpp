#include <pianola/cuda/api_call.hpp>

#include <cuda_runtime_api.h>
#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>

// Types of signatures of long ago, which the next header mentions and <cuda.h> does not declare any more.
using CUdeviceptr_v1 = unsigned;
struct CUDA_ARRAY_DESCRIPTOR_v1;
struct CUDA_ARRAY3D_DESCRIPTOR_v1;
struct CUDA_MEMCPY2D_v1;
struct CUDA_MEMCPY3D_v1;
#include <generated_cuda_meta.h>
#include <generated_cuda_runtime_api_meta.h>

#include <algorithm>
#include <array>
#include <type_traits>

namespace pianola {
namespace {

struct NoParameters {};

// What compiled <<<>>> calls from CUDA 13 on; the headers describe its parameters where it is declared only.
struct __cudaLaunchKernel_v13000_params {  // NOLINT: named as its relatives in the headers are
  cudaKernel_t kernel;
  dim3 gridDim;
  dim3 blockDim;
  void** args;
  std::size_t sharedMem;
  cudaStream_t stream;
};
using __cudaLaunchKernel_ptsz_v13000_params = __cudaLaunchKernel_v13000_params;  // NOLINT

// The fields have the same names in all parameter structs of an API; each of these takes what is there.
template <typename Parameters>
void read_stream(const Parameters& from, ApiCall& call) {
  if constexpr (requires { from.stream; }) {
    call.stream = from.stream;
  } else if constexpr (requires { from.hStream; }) {
    call.stream = from.hStream;
  } else if constexpr (requires { from.config->stream; }) {
    call.stream = from.config == nullptr ? nullptr : from.config->stream;
  } else if constexpr (requires { from.config->hStream; }) {
    call.stream = from.config == nullptr ? nullptr : from.config->hStream;
  }
}

template <typename Parameters>
constexpr bool has_stream() {
  return requires(Parameters from) { from.stream; }
  || requires(Parameters from) { from.hStream; }
  || requires(Parameters from) { from.config->stream; }
  || requires(Parameters from) { from.config->hStream; };
}

const void* address(const void* pointer) { return pointer; }
const void* address(CUdeviceptr pointer) { return reinterpret_cast<const void*>(pointer); }

template <typename Parameters>
void read_memory(const Parameters& from, ApiCall& call) {
  if constexpr (requires { from.src; }) call.source = address(from.src);
  if constexpr (requires { from.srcHost; }) call.source = address(from.srcHost);
  if constexpr (requires { from.srcDevice; }) call.source = address(from.srcDevice);
  if constexpr (requires { from.dst; }) call.destination = address(from.dst);
  if constexpr (requires { from.dstHost; }) {
    call.destination = address(from.dstHost);
    call.to_host = true;
  }
  if constexpr (requires { from.kind; }) call.to_host = from.kind == cudaMemcpyDeviceToHost;
  if constexpr (requires { from.dstDevice; }) call.destination = address(from.dstDevice);
  if constexpr (requires { from.count; }) call.bytes = from.count;
  if constexpr (requires { from.ByteCount; }) call.bytes = from.ByteCount;
  if constexpr (requires { from.size; }) call.bytes = from.size;
  if constexpr (requires { from.bytesize; }) call.bytes = from.bytesize;
}

template <typename Parameters>
void read_freed(const Parameters& from, ApiCall& call) {
  if constexpr (requires { from.devPtr; }) call.destination = address(from.devPtr);
  if constexpr (requires { from.dptr; }) call.destination = address(from.dptr);
  if constexpr (requires { from.ptr; }) call.destination = address(from.ptr);
  if constexpr (requires { from.p; }) call.destination = address(from.p);
}

template <typename Parameters>
void read_event(const Parameters& from, ApiCall& call) {
  if constexpr (requires { from.event; }) call.event = from.event;
  if constexpr (requires { from.hEvent; }) call.event = from.hEvent;
  // The same bit for records and for waits, in the runtime and in the driver.
  static_assert(cudaEventRecordExternal == cudaEventWaitExternal &&
                CU_EVENT_RECORD_EXTERNAL == cudaEventRecordExternal);
  if constexpr (requires { from.flags; }) call.external = (from.flags & cudaEventRecordExternal) != 0;
  if constexpr (requires { from.Flags; }) call.external = (from.Flags & cudaEventRecordExternal) != 0;
}

template <typename Parameters, ApiKind kKind>
void read(const void* parameters, ApiCall& call) {
  if constexpr (!std::is_same_v<Parameters, NoParameters>) {
    if (parameters == nullptr) return;
    const auto& from = *static_cast<const Parameters*>(parameters);
    call.on_stream = has_stream<Parameters>();
    read_stream(from, call);
    if constexpr (kKind != ApiKind::pinned_allocation) read_event(from, call);
    // Of batches the sizes are lists.
    if constexpr (kKind == ApiKind::copy && !requires { from.numAttrs; }) read_memory(from, call);
    if constexpr (kKind == ApiKind::pinned_allocation) read_memory(from, call);
    if constexpr (kKind == ApiKind::free) read_freed(from, call);
  }
}

// How a null stream is to be read: programs may be compiled so that it is the thread's own default stream.
enum class Null : std::uint8_t { legacy, per_thread };

struct Row {
  ApiEntry entry;
  ApiKind kind;
  const char* name;
  bool blocking;
  Null null;
  void (*read)(const void* parameters, ApiCall& call);
};

#define PIANOLA_RUNTIME_(kind, name, suffix, parameters, blocking, null)                                       \
  Row {                                                                                                        \
    {.driver = false, .id = CUPTI_RUNTIME_TRACE_CBID_##name##_##suffix}, ApiKind::kind, #name, blocking, null, \
        &read<parameters, ApiKind::kind>                                                                       \
  }
#define PIANOLA_DRIVER_(kind, name, id_name, parameters, blocking, null)                             \
  Row {                                                                                              \
    {.driver = true, .id = CUPTI_DRIVER_TRACE_CBID_##id_name}, ApiKind::kind, #name, blocking, null, \
        &read<parameters, ApiKind::kind>                                                             \
  }
// An entry point of the runtime, by the version of its signature; one that takes no parameters; one that exists once
// more for programs whose null stream is the thread's; one that blocks the host. The same of the driver.
#define RUNTIME(kind, name, version) \
  PIANOLA_RUNTIME_(kind, name, version, name##_##version##_params, false, Null::legacy)
#define RUNTIME_NO_PARAMETERS(kind, name, version) \
  PIANOLA_RUNTIME_(kind, name, version, NoParameters, false, Null::legacy)
#define RUNTIME_PER_THREAD(kind, name, version) \
  PIANOLA_RUNTIME_(kind, name, version, name##_##version##_params, false, Null::per_thread)
#define RUNTIME_BLOCKING(kind, name, version) \
  PIANOLA_RUNTIME_(kind, name, version, name##_##version##_params, true, Null::legacy)
#define RUNTIME_BLOCKING_PER_THREAD(kind, name, version) \
  PIANOLA_RUNTIME_(kind, name, version, name##_##version##_params, true, Null::per_thread)
#define DRIVER(kind, name) PIANOLA_DRIVER_(kind, name, name, name##_params, false, Null::legacy)
#define DRIVER_PER_THREAD(kind, name) \
  PIANOLA_DRIVER_(kind, name, name##_ptsz, name##_ptsz_params, false, Null::per_thread)
#define DRIVER_NO_PARAMETERS(kind, name) PIANOLA_DRIVER_(kind, name, name, NoParameters, false, Null::legacy)
#define DRIVER_V2(kind, name) PIANOLA_DRIVER_(kind, name, name##_v2, name##_v2_params, false, Null::legacy)
#define DRIVER_V2_PER_THREAD(kind, name) \
  PIANOLA_DRIVER_(kind, name, name##_v2_ptsz, name##_v2_ptsz_params, false, Null::per_thread)
#define DRIVER_BLOCKING(kind, name) PIANOLA_DRIVER_(kind, name, name, name##_params, true, Null::legacy)
#define DRIVER_V2_BLOCKING(kind, name) PIANOLA_DRIVER_(kind, name, name##_v2, name##_v2_params, true, Null::legacy)
// A row that headers of CUDA 12 have not: a call that they have, once more.
#if CUDART_VERSION >= 13000
#define SINCE_13(...) __VA_ARGS__
#else
#define SINCE_13(...) DRIVER(wait, cuStreamSynchronize)
#endif

// What torch, its libraries and custom kernels use. Rare relatives are left out: arrays, 3D fills, batches of old
// versions.
constexpr std::array kRows = std::to_array<Row>({
    // The host waits, or asks.
    RUNTIME_NO_PARAMETERS(wait, cudaDeviceSynchronize, v3020),
    RUNTIME(wait, cudaStreamSynchronize, v3020),
    RUNTIME_PER_THREAD(wait, cudaStreamSynchronize, ptsz_v7000),
    RUNTIME(wait, cudaEventSynchronize, v3020),
    RUNTIME(query, cudaStreamQuery, v3020),
    RUNTIME_PER_THREAD(query, cudaStreamQuery, ptsz_v7000),
    RUNTIME(query, cudaEventQuery, v3020),
    DRIVER_NO_PARAMETERS(wait, cuCtxSynchronize),
    SINCE_13(PIANOLA_DRIVER_(wait, cuCtxSynchronize, cuCtxSynchronize_v2, NoParameters, false, Null::legacy)),
    DRIVER(wait, cuStreamSynchronize),
    DRIVER_PER_THREAD(wait, cuStreamSynchronize),
    DRIVER(wait, cuEventSynchronize),
    DRIVER(query, cuStreamQuery),
    DRIVER_PER_THREAD(query, cuStreamQuery),
    DRIVER(query, cuEventQuery),
    // Order between streams.
    RUNTIME(record, cudaEventRecord, v3020),
    RUNTIME_PER_THREAD(record, cudaEventRecord, ptsz_v7000),
    RUNTIME(record, cudaEventRecordWithFlags, v11010),
    RUNTIME_PER_THREAD(record, cudaEventRecordWithFlags, ptsz_v11010),
    RUNTIME(stream_wait, cudaStreamWaitEvent, v3020),
    RUNTIME_PER_THREAD(stream_wait, cudaStreamWaitEvent, ptsz_v7000),
    DRIVER(record, cuEventRecord),
    DRIVER_PER_THREAD(record, cuEventRecord),
    DRIVER(record, cuEventRecordWithFlags),
    DRIVER_PER_THREAD(record, cuEventRecordWithFlags),
    DRIVER(stream_wait, cuStreamWaitEvent),
    DRIVER_PER_THREAD(stream_wait, cuStreamWaitEvent),
    // Launches.
    RUNTIME(launch, cudaLaunchKernel, v7000),
    RUNTIME_PER_THREAD(launch, cudaLaunchKernel, ptsz_v7000),
    SINCE_13(RUNTIME(launch, __cudaLaunchKernel, v13000)),
    SINCE_13(RUNTIME_PER_THREAD(launch, __cudaLaunchKernel, ptsz_v13000)),
    RUNTIME(launch, cudaLaunchKernelExC, v11060),
    RUNTIME_PER_THREAD(launch, cudaLaunchKernelExC, ptsz_v11060),
    RUNTIME(launch, cudaLaunchCooperativeKernel, v9000),
    RUNTIME_PER_THREAD(launch, cudaLaunchCooperativeKernel, ptsz_v9000),
    RUNTIME(launch, cudaLaunchHostFunc, v10000),
    RUNTIME_PER_THREAD(launch, cudaLaunchHostFunc, ptsz_v10000),
    RUNTIME(launch, cudaGraphLaunch, v10000),
    RUNTIME_PER_THREAD(launch, cudaGraphLaunch, ptsz_v10000),
    DRIVER(launch, cuLaunchKernel),
    DRIVER_PER_THREAD(launch, cuLaunchKernel),
    DRIVER(launch, cuLaunchKernelEx),
    DRIVER_PER_THREAD(launch, cuLaunchKernelEx),
    DRIVER(launch, cuLaunchCooperativeKernel),
    DRIVER_PER_THREAD(launch, cuLaunchCooperativeKernel),
    DRIVER(launch, cuLaunchHostFunc),
    DRIVER_PER_THREAD(launch, cuLaunchHostFunc),
    DRIVER(launch, cuGraphLaunch),
    DRIVER_PER_THREAD(launch, cuGraphLaunch),
    // Copies.
    RUNTIME_BLOCKING(copy, cudaMemcpy, v3020),
    RUNTIME_BLOCKING_PER_THREAD(copy, cudaMemcpy, ptds_v7000),
    RUNTIME_BLOCKING(copy, cudaMemcpy2D, v3020),
    RUNTIME_BLOCKING(copy, cudaMemcpy3D, v3020),
    RUNTIME_BLOCKING(copy, cudaMemcpyToSymbol, v3020),
    RUNTIME_BLOCKING(copy, cudaMemcpyFromSymbol, v3020),
    RUNTIME(copy, cudaMemcpyAsync, v3020),
    RUNTIME_PER_THREAD(copy, cudaMemcpyAsync, ptsz_v7000),
    RUNTIME(copy, cudaMemcpy2DAsync, v3020),
    RUNTIME_PER_THREAD(copy, cudaMemcpy2DAsync, ptsz_v7000),
    RUNTIME(copy, cudaMemcpy3DAsync, v3020),
    RUNTIME(copy, cudaMemcpyToSymbolAsync, v3020),
    RUNTIME(copy, cudaMemcpyFromSymbolAsync, v3020),
    RUNTIME(copy, cudaMemcpyPeerAsync, v4000),
    DRIVER_BLOCKING(copy, cuMemcpy),
    DRIVER_V2_BLOCKING(copy, cuMemcpyHtoD),
    DRIVER_V2_BLOCKING(copy, cuMemcpyDtoH),
    DRIVER_V2_BLOCKING(copy, cuMemcpyDtoD),
    DRIVER(copy, cuMemcpyAsync),
    DRIVER_PER_THREAD(copy, cuMemcpyAsync),
    DRIVER_V2(copy, cuMemcpyHtoDAsync),
    DRIVER_V2_PER_THREAD(copy, cuMemcpyHtoDAsync),
    DRIVER_V2(copy, cuMemcpyDtoHAsync),
    DRIVER_V2_PER_THREAD(copy, cuMemcpyDtoHAsync),
    DRIVER_V2(copy, cuMemcpyDtoDAsync),
    DRIVER_V2_PER_THREAD(copy, cuMemcpyDtoDAsync),
    // Fills.
    RUNTIME_BLOCKING(fill, cudaMemset, v3020),
    RUNTIME_BLOCKING_PER_THREAD(fill, cudaMemset, ptds_v7000),
    RUNTIME_BLOCKING(fill, cudaMemset2D, v3020),
    RUNTIME(fill, cudaMemsetAsync, v3020),
    RUNTIME_PER_THREAD(fill, cudaMemsetAsync, ptsz_v7000),
    RUNTIME(fill, cudaMemset2DAsync, v3020),
    DRIVER_V2_BLOCKING(fill, cuMemsetD8),
    DRIVER_V2_BLOCKING(fill, cuMemsetD16),
    DRIVER_V2_BLOCKING(fill, cuMemsetD32),
    DRIVER(fill, cuMemsetD8Async),
    DRIVER_PER_THREAD(fill, cuMemsetD8Async),
    DRIVER(fill, cuMemsetD16Async),
    DRIVER_PER_THREAD(fill, cuMemsetD16Async),
    DRIVER(fill, cuMemsetD32Async),
    DRIVER_PER_THREAD(fill, cuMemsetD32Async),
    // Memory.
    RUNTIME(pinned_allocation, cudaHostAlloc, v3020),
    RUNTIME(pinned_allocation, cudaMallocHost, v3020),
    RUNTIME(pinned_allocation, cudaHostRegister, v4000),
    RUNTIME(free, cudaFree, v3020),
    RUNTIME(free, cudaFreeHost, v3020),
    DRIVER(pinned_allocation, cuMemHostAlloc),
    DRIVER_V2(pinned_allocation, cuMemAllocHost),
    DRIVER_V2(pinned_allocation, cuMemHostRegister),
    DRIVER_V2(free, cuMemFree),
    DRIVER(free, cuMemFreeHost),
});

#undef SINCE_13
#undef DRIVER_V2_BLOCKING
#undef DRIVER_BLOCKING
#undef DRIVER_V2_PER_THREAD
#undef DRIVER_V2
#undef DRIVER_NO_PARAMETERS
#undef DRIVER_PER_THREAD
#undef DRIVER
#undef RUNTIME_BLOCKING_PER_THREAD
#undef RUNTIME_BLOCKING
#undef RUNTIME_PER_THREAD
#undef RUNTIME_NO_PARAMETERS
#undef RUNTIME
#undef PIANOLA_DRIVER_
#undef PIANOLA_RUNTIME_

// By CUPTI's numbers, since every launch is looked up: the place in kRows, from 1.
template <std::size_t kSize>
consteval std::array<std::uint8_t, kSize> index_of_rows(bool driver) {
  static_assert(kRows.size() < 256);
  std::array<std::uint8_t, kSize> index{};
  for (std::size_t row = 0; row < kRows.size(); ++row) {
    if (kRows[row].entry.driver == driver) index[kRows[row].entry.id] = static_cast<std::uint8_t>(row + 1);
  }
  return index;
}

constexpr auto kRuntimeRows = index_of_rows<CUPTI_RUNTIME_TRACE_CBID_SIZE>(false);
constexpr auto kDriverRows = index_of_rows<CUPTI_DRIVER_TRACE_CBID_SIZE>(true);

const Row* find(ApiEntry entry) {
  if (entry.id >= (entry.driver ? kDriverRows.size() : kRuntimeRows.size())) return nullptr;
  const std::uint8_t row = entry.driver ? kDriverRows[entry.id] : kRuntimeRows[entry.id];
  return row == 0 ? nullptr : &kRows[row - 1U];
}

}  // namespace

std::optional<ApiEntry> api_entry(std::size_t index) noexcept {
  return index < kRows.size() ? std::optional(kRows[index].entry) : std::nullopt;
}

std::optional<ApiCall> decode(ApiEntry entry, const void* parameters) noexcept {
  const Row* row = find(entry);
  if (row == nullptr) return std::nullopt;
  ApiCall call;
  call.kind = row->kind;
  call.name = row->name;
  call.blocking = row->blocking;
  row->read(parameters, call);
  if (call.blocking && (call.kind == ApiKind::copy || call.kind == ApiKind::fill)) call.on_stream = true;
  if (call.on_stream && call.stream == nullptr && row->null == Null::per_thread) call.stream = CU_STREAM_PER_THREAD;
  if (call.stream == CU_STREAM_LEGACY) call.stream = nullptr;
  return call;
}

}  // namespace pianola
