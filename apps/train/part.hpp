#pragma once
#include <pianola/callable/callable.hpp>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::train {

/// A module of a model that may be called by way of a graph.
class Part {
 public:
  using Call = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

  /// @param scope   What configurations call it: "attn"; "layer" for whole ones.
  /// @param module  A holder, or a shared pointer; its forward takes and returns tensors.
  template <typename Module>
  Part(std::string scope, Module module) : scope_(std::move(scope)), callable_(module), call_(eager(callable_)) {}

  [[nodiscard]] std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) const {
    return call_(inputs);
  }
  /// Of a module that returns one tensor.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& input) const { return call_({input}).front(); }

  void call_through(Call call) { call_ = std::move(call); }
  [[nodiscard]] const Callable& callable() const noexcept { return callable_; }
  [[nodiscard]] const std::string& scope() const noexcept { return scope_; }

 private:
  static Call eager(Callable callable);

  std::string scope_;
  Callable callable_;
  Call call_;
};

/// A part, and what reports call it.
struct NamedPart {
  std::string name;
  Part* part;
};

}  // namespace pianola::train
