#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string_view>
#include <vector>

namespace pianola::distributed {

/// Compares number, dtypes, sizes, strides and whether grad is required over all ranks. Communicates, and waits for the device.
/// c10d's verify_params_across_processes() would throw on some ranks, and leave the others waiting.
///
/// @param kind     "parameter".
/// @param tensors  On `device`, may be none.
/// @throws UsageError  They differ: on each rank.
void require_same_tensors(c10d::ProcessGroup& group, std::string_view kind, const std::vector<at::Tensor>& tensors,
                          c10::Device device);

}  // namespace pianola::distributed
