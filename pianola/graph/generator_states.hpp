#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace pianola::graph {

/// Remembers where generators stand, and puts them back. Host work only: the states of CUDA generators live there too.
class GeneratorStates {
 public:
  GeneratorStates() = default;
  explicit GeneratorStates(const std::vector<at::Generator>& generators);
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace pianola::graph
