#pragma once
#include <c10/core/Device.h>

#include <memory>
#include <optional>

namespace pianola::auditing {

/// While it lives, a stream of its own is the current one of a CUDA device, ordered by events behind the work of the one
/// that was current, and before its next; the host does not wait. As a capture does: what the runs make, handles and
/// AccumulateGrad nodes, is then made on such a stream too. Nothing happens on the CPU.
class SideStream {
 public:
  /// @param device  Empty: the current CUDA device, where CUDA is in use.
  explicit SideStream(std::optional<c10::Device> device);
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pianola::auditing
