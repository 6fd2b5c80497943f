#pragma once
#include "harness.hpp"

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::bench {

/// Work that is ready to be timed. Its contenders own all they need.
struct PreparedCase {
  std::vector<Contender> contenders;
  /// Numbers that every program that does this work gets, up to rounding.
  std::vector<double> check;
};

/// Forward and backward of one graphed callable with so many parameters; `model` is "sum" (few kernels) or "linear" (a
/// chain). Contenders: "accumulate" adds to gradients that are there; "set to none" drops them before each forward.
///
/// @throws Error  The callable's results differ from eager's in any bit.
PreparedCase prepare_callable(const std::string& model, std::int64_t parameters, c10::Device device);

/// A training step with the optimizer outside; `model` is "mlp" or "transformer". Contenders: "eager", "whole" (one
/// callable), "per layer" (one for each).
///
/// @throws Error  Loss, parameters or moments of a graphed contender differ from eager's in any bit.
PreparedCase prepare_training(const std::string& model, c10::Device device);

}  // namespace pianola::bench
