#pragma once
#include <pianola/trace/references.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace pianola::callable {

/// The same memory, with a version counter of its own and no base: not a view in autograd's sense.
at::Tensor alias_of(const at::Tensor& tensor);
template <typename T>
std::vector<T> select(const std::vector<T>& from, const std::vector<std::size_t>& which) {
  std::vector<T> result;
  result.reserve(which.size());
  for (const std::size_t i : which) result.push_back(from[i]);
  return result;
}
/// Tensors of the same layout with the same values, made by one kernel.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors);
/// Fills with -0.0, by few kernels.
void fill_with_minus_zero(const std::vector<at::Tensor>& tensors);

/// Memory for one gradient per parameter, at addresses that do not change, laid out as autograd lays gradients out. One
/// block per dtype holds all of them but those that the caller brings.
class GradientBuffers {
 public:
  /// @param own  Per parameter, a tensor to serve as its buffer; undefined where one is to be made.
  GradientBuffers(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& own);

  /// Never handed out: nobody can change what they look at.
  [[nodiscard]] const std::vector<at::Tensor>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::size_t bytes() const noexcept;
  /// Tensors that together cover all buffers and nothing else that anyone may look at.
  [[nodiscard]] const std::vector<at::Tensor>& whole() const noexcept { return whole_; }
  void clear(const std::vector<std::size_t>& which) const;

  /// Call when the `aliases` that we keep of each buffer are there, and again when the graphs that keep the memory are:
  /// more references than those are somebody else's.
  void count_references(std::size_t aliases);
  [[nodiscard]] bool has_other_references(std::size_t i) const {
    return trace::references_to(tensors_[i].storage()) > references_[i];
  }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> whole_;
  std::vector<bool> own_;                   // per buffer: the caller brought it
  std::vector<std::size_t> before_graphs_;  // references to its storage
  std::vector<std::size_t> references_;     // ours and the graphs'
};

}  // namespace pianola::callable
