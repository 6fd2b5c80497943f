#pragma once
#include <pianola/graph/account/process_memory.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream.hpp>

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pianola::graph {

// Note [Memory of libraries and kernels]
// CUDA loads a kernel when it is first launched, and a library makes its handles and loads its kernels when it is first called. No call
// tells what that takes, and torch's allocator never sees it. So the driver is asked what is left before and after each operation:
// what is missing and neither torch's nor an executable's belongs to the operation, and to the library that operations of its kind call.

/// What watches have found, of all devices. Any thread may call.
class WatchedDevices {
 public:
  static WatchedDevices& of_this_process();

  /// A watch begins. @param free_before  Of the device, before this process had a context there; 0: it had one, or nobody tells.
  void begin(c10::Device device, bool had_context, std::size_t free_before);
  void end(c10::Device device);
  /// What is in use more than at the last time is `what`'s. @param where  Says where that was; asked the first time of each.
  void settle(c10::Device device, std::string_view what, const std::function<std::string()>& where);
  [[nodiscard]] std::vector<WatchedMemory> found_on(c10::Device device);

 private:
  struct Found {
    std::vector<WatchedMemory> all;
    std::optional<std::int64_t> last;  // reading
    int watches = 0;                   // that are open
  };
  static WatchedMemory& line_of(Found& found, std::string_view what);

  std::mutex mutex_;
  std::map<c10::DeviceIndex, Found> found_;
};

/// Has to be shown the operations of a thread. Makes the device's context where there is none.
class DriverWatch final : public trace::OpObserver {
 public:
  explicit DriverWatch(c10::Device device);
  DriverWatch(const DriverWatch&) = delete;
  DriverWatch& operator=(const DriverWatch&) = delete;
  ~DriverWatch() override;

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

 private:
  void settle();

  c10::Device device_;
  std::vector<std::pair<std::uint64_t, const trace::OpInfo*>> running_;  // the innermost last
};

/// Which library operations of this kind call, as far as their names tell: "cuBLAS", "cuDNN", "NCCL", ...; "kernels" for torch's own.
[[nodiscard]] std::string_view library_of(const trace::OpInfo& op);

}  // namespace pianola::graph
