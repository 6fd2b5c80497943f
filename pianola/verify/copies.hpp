#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <map>
#include <vector>

namespace pianola::verification {

/// Makes copies that nothing else changes: beside their tensors on the device, as long as half of what was free there at
/// first stays free for the steps, and in host memory beyond.
class Copies {
 public:
  /// Undefined of an undefined one.
  at::Tensor of(const at::Tensor& tensor);
  /// Of all, where an entry of `earlier` that has the same bits serves as the copy. `earlier` may be shorter.
  std::vector<at::Tensor> of(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& earlier);

 private:
  [[nodiscard]] bool has_room(c10::Device device, std::size_t bytes);
  std::map<c10::DeviceIndex, std::size_t> left_alone_;  // per CUDA device, what has to stay free
};

}  // namespace pianola::verification
