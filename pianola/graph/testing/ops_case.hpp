#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace pianola::testing {

using Tensors = std::vector<at::Tensor>;

/// Static inputs of a case; the first group requires grad, and a case may write only the last.
struct Inputs {
  at::Tensor x, y;       ///< [4, 8].
  at::Tensor w;          ///< [8, 8].
  at::Tensor v;          ///< [8].
  at::Tensor image;      ///< [2, 4, 6, 6].
  at::Tensor kernel;     ///< [4, 4, 3, 3].
  at::Tensor sequence;   ///< [2, 4, 8].
  at::Tensor labels;     ///< [4] of 0..7.
  at::Tensor index;      ///< [4, 8] of 0..3.
  at::Tensor mask;       ///< [4, 8] of bool.
  at::Tensor buffer;     ///< [4, 8].
  at::Tensor statistic;  ///< [4], positive.
};

/// An operation, or an idiom of several, and what it returns.
struct OpsCase {
  std::string name;
  std::function<Tensors(const Inputs&)> run;
};

const std::vector<OpsCase>& arithmetic_cases();
const std::vector<OpsCase>& layer_cases();
const std::vector<OpsCase>& memory_cases();
const std::vector<OpsCase>& inplace_cases();

}  // namespace pianola::testing
