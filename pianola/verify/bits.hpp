#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace pianola::verification {

/// The tensor's elements as signed integers of their size, on the same memory where that can be: what equality of bits
/// compares. A complex number of 16 bytes becomes two, in a last dimension of its own. Sparse tensors are made dense.
at::Tensor bits_of(const at::Tensor& tensor);

/// Asks of many pairs of tensors whether all their bits are equal. Compares on the device and waits for it once.
class BitCheck {
 public:
  /// Both are defined and have the same shape and dtype; on two devices, the first one's bits are compared on the host.
  void add(const at::Tensor& one, const at::Tensor& other);
  /// For each pair, in order, whether they are equal. The check is empty afterwards.
  [[nodiscard]] std::vector<bool> take();

 private:
  struct Answer {
    bool equal;
    at::Tensor differ;  // a flag on the device, where the host does not know yet
  };
  std::vector<Answer> answers_;
};

}  // namespace pianola::verification
