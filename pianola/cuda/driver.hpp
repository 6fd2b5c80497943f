#pragma once
#include <pianola/cuda/entry_points.hpp>

#include <cuda.h>
#include <cudaTypedefs.h>

namespace pianola {

/// The CUDA driver's functions, loaded when first asked for, so that a program that uses Pianola starts without one.
///
///     driver.graph_launch(exec, stream)   is   cuGraphLaunch(exec, stream)
///
/// Handles are those of the CUDA runtime (CUgraph == cudaGraph_t, CUgraphExec == cudaGraphExec_t, CUstream ==
/// cudaStream_t, also codes: see describe()), and what needs a context uses the calling thread's current one, which is
/// the device's primary one after any call of the runtime or of torch. Stream 0 is the legacy default stream.
///
/// A plain struct, so that a test can pass a table of its own functions. Threads: immutable, any thread may call.
struct Driver {
#define PIANOLA_DRIVER_MEMBER(member, symbol, version) PFN_##symbol##_v##version member = nullptr;
  PIANOLA_DRIVER_ENTRY_POINTS(PIANOLA_DRIVER_MEMBER)
#undef PIANOLA_DRIVER_MEMBER

  /// The driver of this machine, initialized. @throws DeviceError  There is none, it is too old or it has no device.
  [[nodiscard]] static const Driver& get();
  /// The same, but nullptr where get() would throw.
  [[nodiscard]] static const Driver* try_get() noexcept;
  /// Whether get() succeeds: there is a driver and at least one device.
  [[nodiscard]] static bool available() noexcept { return try_get() != nullptr; }
};

}  // namespace pianola
