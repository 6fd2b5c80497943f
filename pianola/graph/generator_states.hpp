#pragma once
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace pianola::graph {

/// Remembers where generators stand, and puts them back. Host work only: the states of CUDA generators live there too.
/// As an observer it also remembers those that an operation is about to draw from although nobody named them: the
/// capture refuses them later, but an eager run moves them before.
class GeneratorStates final : public trace::OpObserver {
 public:
  void remember(const std::vector<at::Generator>& generators);
  void restore() const;

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;

 private:
  void remember(at::Generator generator);
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace pianola::graph
