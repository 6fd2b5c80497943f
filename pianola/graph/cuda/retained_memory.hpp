#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace pianola::graph {

/// Memory from outside of the pool that replays of a graph use, kept alive for them.
class RetainedMemory {
 public:
  void keep(std::vector<c10::Storage> storages) { storages_ = std::move(storages); }
  /// Pinned memory of the host, that its copies read.
  void pin(std::vector<at::Tensor> tensors) { pinned_ = std::move(tensors); }
  void unpin() noexcept { pinned_.clear(); }

  [[nodiscard]] const std::vector<c10::Storage>& storages() const noexcept { return storages_; }
  /// On the device.
  [[nodiscard]] std::size_t bytes() const;

  /// Lets all go, to be used again when the work that these streams have now is done.
  void let_go_behind(std::span<const c10::cuda::CUDAStream> streams);

 private:
  std::vector<c10::Storage> storages_;
  std::vector<at::Tensor> pinned_;
};

}  // namespace pianola::graph
