#pragma once
#include <pianola/training/batch_memory.hpp>
#include <pianola/training/padding_plan.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

namespace pianola::training {

// Note [The way of a batch]
// On a GPU, with a spare block of device memory:
//
//   host           source -> staging     source -> staging           the two staging buffers take turns
//   side stream             staging -> spare       (waits) staging -> spare
//   current stream   step n ...            spare -> static, step n+1 ...
//
// Two events order it. `slot.sent`, on the side stream after the copy from the host: the current stream waits for it
// before it reads the spare block, and the host before it writes to this staging buffer again. `taken_`, on the current
// stream after the copy into the static tensors: the side stream waits for it before it writes to the spare block
// again. Without a spare block the copy from the host goes into the static tensors, on the current stream, which then
// records `sent`. On the CPU it is the same with one staging buffer and no event.

/// How one tensor of a batch gets into its static tensor.
enum class Route {
  staged,  ///< From host memory by way of a staging buffer, which the host fills at once.
  direct,  ///< From host memory as it is, later: pinned, and laid out as the static tensor.
  local,   ///< From memory of a device, on the current stream.
  none,    ///< The source is the static tensor.
};

struct TransferOptions {
  bool pin = true;            ///< As StaticInputsOptions says.
  bool double_buffer = true;  ///< The same.
  /// Sources may be written when send() returns, pinned ones as well. Wants `pin` on a GPU.
  bool reads_at_once = false;
};

/// The memory of StaticInputs, and what moves batches through it.
class BatchTransfer {
 public:
  /// @param layouts, padding  Of all buckets; outlive this.
  BatchTransfer(c10::Device device, TransferOptions options, std::span<const BatchLayout> layouts,
                const PaddingPlan& padding);
  BatchTransfer(const BatchTransfer&) = delete;
  BatchTransfer& operator=(const BatchTransfer&) = delete;
  /// Waits for the copies that read host memory.
  ~BatchTransfer();

  [[nodiscard]] const std::vector<at::Tensor>& statics(std::size_t bucket) const { return static_.tensors(bucket); }

  /// Starts `sources` on their way to the static tensors of the bucket.
  void send(std::vector<at::Tensor> sources, std::size_t bucket);
  /// Lets what was sent arrive, on the current stream.
  void receive();
  /// Copies `values` into the static tensors of the bucket, padded or cut off, on the current stream.
  void place(std::span<const at::Tensor> values, std::size_t bucket);

  [[nodiscard]] std::size_t static_bytes() const { return static_.block().nbytes(); }
  [[nodiscard]] std::size_t spare_bytes() const { return spare_ ? spare_->block().nbytes() : 0; }
  /// Of staging buffers, pinned or not.
  [[nodiscard]] std::size_t staging_bytes() const;

 private:
  struct Slot {
    explicit Slot(c10::Device device) : sent(device.type()) {}
    std::optional<BatchMemory> staging = {};
    std::vector<at::Tensor> sources = {};  // that are read where they are, until `sent`
    c10::Event sent;
  };
  struct Sent {
    std::size_t bucket = 0;
    std::vector<at::Tensor> sources = {};
    std::vector<Route> routes = {};
    std::optional<c10::Stream> stream = {};  // the current one of send(); where a source is on a device
  };

  [[nodiscard]] Route route_of(const at::Tensor& source, std::size_t leaf, std::size_t bucket) const;
  void find_routes();
  void stage(Slot& slot);
  void copy_from_host(const BatchMemory& to, Slot& slot);
  void copy_from_spare();
  void copy_from_devices(c10::Stream current);
  void note_use_on(c10::Stream current);
  void keep_apart();
  template <typename Visit>
  void for_each_run(std::initializer_list<Route> routes, const Visit& visit) const;
  [[nodiscard]] c10::Stream current_stream() const;

  c10::Device device_;
  TransferOptions options_;
  std::span<const BatchLayout> layouts_;
  const PaddingPlan& padding_;
  BatchMemory static_;
  std::optional<BatchMemory> spare_;
  std::optional<c10::Stream> side_;
  c10::Stream used_on_;
  c10::Event taken_;
  c10::Event issued_;  // on the current stream of send(), after what makes the sources that are on a device
  std::vector<Slot> slots_;
  std::size_t turn_ = 0;
  Sent sent_;
};

}  // namespace pianola::training
