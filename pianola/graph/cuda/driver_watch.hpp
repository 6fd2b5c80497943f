#pragma once
#include <pianola/graph/account/process_memory.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream.hpp>

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <mutex>
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

  void add(c10::Device device, std::string_view what, std::int64_t bytes, const std::string& where);
  [[nodiscard]] std::vector<WatchedMemory> found_on(c10::Device device);
  /// What used_outside_of_torch() said last, for who watches next; the first one finds nothing.
  [[nodiscard]] std::optional<std::int64_t> last_reading(c10::Device device);
  void leave(c10::Device device, std::int64_t reading);

 private:
  struct Found {
    std::vector<WatchedMemory> all;
    std::optional<std::int64_t> last_reading;
  };
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
  void begin();
  void settle();

  c10::Device device_;
  std::int64_t last_ = 0;
  std::vector<std::pair<std::uint64_t, const trace::OpInfo*>> running_;  // the innermost last
};

/// Which library operations of this kind call, as far as their names tell: "cuBLAS", "cuDNN", "NCCL", ...; "kernels" for torch's own.
[[nodiscard]] std::string_view library_of(const trace::OpInfo& op);

}  // namespace pianola::graph
