#pragma once
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/error_codes.hpp>

#include <optional>
#include <string>
#include <utility>

namespace pianola {

/// How a graph is made executable. The defaults are CUDA's.
struct InstantiateOptions {
  bool auto_free_on_launch = false;        ///< Memory that the graph allocates and leaves is freed by its next launch.
  bool use_node_priority = false;          ///< Kernels run at the priority of the stream they were captured on.
  bool device_launch = false;              ///< Kernels may launch it; not together with auto_free_on_launch.
  std::optional<CUstream> upload_on = {};  ///< Also upload on this stream, so that the first launch is like the others.
};

/// Why an executable could not take over a graph.
struct UpdateRefusal {
  CUgraphExecUpdateResult result;  ///< CUDA's reason.
  std::string reason;              ///< The same in words.
  CUgraphNode node = nullptr;      ///< The node of the new graph that differs; nullptr where CUDA names none.
  std::string node_text = {};  ///< That node in words ("kernel at::native::fill_kernel"); empty where there is none.
};

/// An executable graph (CUgraphExec), owned.
///
///     Executable exec = Executable::instantiate(graph, {.upload_on = stream});
///     exec.launch(stream);
///
/// It does not need the graph that it was made from any more. Destruction while it runs is fine: CUDA frees it when it
/// is done. It may also be destroyed while a capture is open on the thread.
///
/// Threads:  One call at a time per object; launches on several streams run one after the other.
class Executable {
 public:
  /// @throws OutOfMemoryError  The device has no room for it. DeviceError: CUDA refuses; names the node at fault where there is one.
  /// @throws UsageError   The options exclude each other.
  [[nodiscard]] static Executable instantiate(CUgraph graph, const InstantiateOptions& options = {},
                                              const Driver& driver = Driver::get());

  /// Holds nothing: get() is nullptr, and nothing may be launched.
  Executable() = default;
  Executable(Executable&& other) noexcept;
  Executable& operator=(Executable&& other) noexcept;
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  ~Executable() { reset(); }

  /// Launches on `stream` and returns without waiting. One call of the driver: no lock, no allocation.
  /// @throws DeviceError  CUDA refused; nothing was launched.
  void launch(CUstream stream) const {
    if (const CUresult result = launch_(exec_, stream); result != CUDA_SUCCESS) [[unlikely]]
      throw_device_error(result, "cuGraphLaunch");
  }

  /// Copies what the launch needs to the device, on `stream`. @throws DeviceError
  void upload(CUstream stream) const;

  /// Takes over the parameters of `graph`, which must have the same nodes and edges in the same order.
  /// @return  Nothing if it did; else why not, and the executable is as it was.
  /// @throws DeviceError  CUDA failed for a reason that lies not in the graph.
  [[nodiscard]] std::optional<UpdateRefusal> update(CUgraph graph);

  [[nodiscard]] CUgraphExec get() const noexcept { return exec_; }
  /// Gives the handle away: the caller destroys it.
  [[nodiscard]] CUgraphExec release() noexcept { return std::exchange(exec_, nullptr); }
  /// Destroys what it holds. A failure is reported on stderr.
  void reset() noexcept;

 private:
  Executable(CUgraphExec exec, const Driver& driver) noexcept
      : exec_(exec), launch_(driver.graph_launch), driver_(&driver) {}

  CUgraphExec exec_ = nullptr;
  PFN_cuGraphLaunch_v10000 launch_ = nullptr;  // Here, so that a launch reads one cache line.
  const Driver* driver_ = nullptr;
};

}  // namespace pianola
