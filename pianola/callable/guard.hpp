#pragma once
#include <pianola/callable/module_view.hpp>
#include <pianola/graph/placement.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

/// What one input must look like: as the sample's leaf did.
class InputGuard {
 public:
  /// @param gradients  Whether it matters if the input requires grad.
  InputGuard(const at::Tensor& sample, bool gradients);

  [[nodiscard]] bool accepts(const at::Tensor& input) const;
  /// "shape: captured [8, 16], received [4, 16]", one entry for each thing that differs.
  [[nodiscard]] std::vector<std::string> differences(const at::Tensor& input) const;

 private:
  [[nodiscard]] bool same_strides(const at::Tensor& input) const;

  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  c10::ScalarType dtype_;
  c10::Device device_;
  bool gradients_;
  bool requires_grad_;
};

/// Sees in one tight loop whether each parameter's memory is where the graphs expect it, of the shape and strides that they
/// expect.
class ParameterGuard {
 public:
  /// Watches a leaf from now on; nothing if it is watched already. Keeps it alive.
  void add(const at::Tensor& leaf);

  [[nodiscard]] bool intact() const noexcept;
  /// "a Float parameter 'weight' of shape [4]: its memory was replaced (.data = ..., ...)", one entry each.
  [[nodiscard]] std::vector<std::string> differences(const ModuleView& module) const;

 private:
  struct Watched {
    const c10::TensorImpl* impl;
    graph::Placement placement;
  };
  std::vector<Watched> watched_;
  std::vector<at::Tensor> leaves_;
};

/// "a float parameter 'fc.weight' of shape [16, 16]".
std::string describe_parameter(const at::Tensor& parameter, const ModuleView& module);

}  // namespace pianola::callable
