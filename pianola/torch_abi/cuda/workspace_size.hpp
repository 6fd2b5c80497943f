#pragma once
#include <pianola/torch_abi/torch_version.hpp>

#include <cstddef>
#include <string_view>

// How large torch makes a workspace of cuBLAS. at::cuda::getChosenWorkspaceSize() tells it; torch 2.12 declares that function and
// does not have it (no link), so what it does there is done here.

namespace pianola::torch_abi {

/// Bytes that torch gives a handle of cuBLAS on the current device. A device must be there.
std::size_t gemm_workspace_bytes();

/// The rule of torch 2.12.
/// @param config  The value of CUBLAS_WORKSPACE_CONFIG: pairs :KiB:count. Empty, or without a pair: what cuBLAS recommends.
/// @param major   Of the device's compute capability.
std::size_t workspace_bytes_of(std::string_view config, int major);

}  // namespace pianola::torch_abi
