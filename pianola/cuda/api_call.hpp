#pragma once
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace pianola {

/// What a call of CUDA does to the host and to streams.
enum class ApiKind : std::uint8_t {
  wait,               ///< The host waits for a device, a stream or an event.
  query,              ///< The host asks whether a stream or an event is done.
  record,             ///< An event is recorded on a stream.
  stream_wait,        ///< A stream waits for an event.
  launch,             ///< A kernel, a function of the host, or a graph.
  copy,               ///< Memory is copied.
  fill,               ///< Memory is filled.
  pinned_allocation,  ///< Memory of the host is allocated as pinned, or pinned.
  free,               ///< Memory is freed at once, which waits for the device.
};

/// A call of CUDA's runtime or driver, as far as its order among others matters.
struct ApiCall {
  ApiKind kind = ApiKind::wait;
  const char* name = "";         ///< "cudaStreamSynchronize"; lives as long as the process.
  CUstream stream = nullptr;     ///< The legacy default stream is nullptr, however it was spelled.
  CUevent event = nullptr;       ///< Of waits, queries and records; nullptr where it is none.
  bool on_stream = false;        ///< `stream` says something: the call is about a stream.
  bool external = false;         ///< Of records and waits: nodes of their own in a graph, free to cross its border.
  bool blocking = false;         ///< Of copies and fills: not an ...Async one. They use the default stream.
  bool to_host = false;          ///< Of copies that say so: from the device to the host.
  const void* source = nullptr;  ///< Of copies that name an address.
  const void* destination = nullptr;  ///< The same; of frees what is freed.
  std::size_t bytes = 0;              ///< Of pinned allocations and plain copies.
  CUcontext context = nullptr;        ///< The calling thread's current one.
};

/// An entry point whose calls are understood, as CUPTI numbers it.
struct ApiEntry {
  bool driver;       ///< Of the driver's API, not the runtime's.
  std::uint32_t id;  ///< CUpti_CallbackId in that domain.
};

/// The entry point at a place in the list of those that are understood; nothing behind its end.
[[nodiscard]] std::optional<ApiEntry> api_entry(std::size_t index) noexcept;

/// @param parameters  The call's parameters as CUPTI hands them over (CUpti_CallbackData::functionParams); may be
/// nullptr
///                    for calls that have none. @return  Nothing where the entry point is not one of the list.
[[nodiscard]] std::optional<ApiCall> decode(ApiEntry entry, const void* parameters) noexcept;

}  // namespace pianola
