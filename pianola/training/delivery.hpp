#pragma once
#include <pianola/core/export.hpp>
#include <pianola/training/batch_memory.hpp>
#include <pianola/training/padding_plan.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace pianola::training {

class BatchTransfer;

/// Whether this thread may bring inputs of a call to the device before the call: not in a capture or an observed run, which the copies
/// belong to, nor under modes of Python's and transforms, which have to see them.
[[nodiscard]] PIANOLA_API bool may_deliver();

/// Inputs on the host that each call of a graph brings to the device: in one copy, through pinned memory, into tensors that stay.
///
/// Host:     Waits until the inputs of the call before the last one have left their pinned memory, and for nothing else.
/// Streams:  Works on the current stream of the device; each stream has tensors of its own.
/// Threads:  Any; a second call at the same time is not served.
class PIANOLA_API Delivery {
 public:
  /// @param there  One tensor of the device for each input, dense: the shape, dtype and strides that it arrives with.
  explicit Delivery(std::span<const at::Tensor> there);
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;
  /// Waits for the copies that read pinned memory.
  ~Delivery();

  /// What has arrived. It is there for work that is put on the stream while this lives.
  class PIANOLA_API Arrived {
   public:
    [[nodiscard]] const std::vector<at::Tensor>& tensors() const noexcept { return *tensors_; }
    /// Whether a tensor looks at their memory, one block, which the next call overwrites.
    [[nodiscard]] bool holds(const at::Tensor& tensor) const;

   private:
    friend class Delivery;
    struct EndTurn {
      void operator()(std::atomic_flag* is_busy) const noexcept { is_busy->clear(); }
    };
    explicit Arrived(std::atomic_flag& is_busy) : turn_(&is_busy) {}

    std::unique_ptr<std::atomic_flag, EndTurn> turn_;
    const std::vector<at::Tensor>* tensors_ = nullptr;
  };

  /// Whether they are on the host, plain, and of the shapes, dtypes and strides that the inputs have.
  [[nodiscard]] bool takes(std::span<const at::Tensor> inputs) const;
  /// Brings inputs that takes() accepts. They are read before it returns. Nothing where may_deliver() says no, or while another call
  /// is served.
  [[nodiscard]] std::optional<Arrived> bring(std::vector<at::Tensor> inputs);

 private:
  BatchTransfer& transfer_here();

  c10::Device device_;
  std::vector<BatchLayout> layouts_;  // one
  PaddingPlan padding_;
  std::vector<std::pair<c10::Stream, std::unique_ptr<BatchTransfer>>> transfers_;  // the latest stream first
  std::atomic_flag is_busy_;
};

}  // namespace pianola::training
