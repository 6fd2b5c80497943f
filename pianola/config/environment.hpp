#pragma once
#include <pianola/config/cuda_graph_config.hpp>
#include <pianola/core/export.hpp>

namespace pianola {

/// Fills in what the environment of this process says and the configuration does not: PYTORCH_CUDA_ALLOC_CONF (or
/// PYTORCH_ALLOC_CONF), NCCL_GRAPH_REGISTER and CUDA_GRAPHS_USE_NODE_PRIORITY. Numbers that are none are left out.
[[nodiscard]] PIANOLA_API CudaGraphConfig with_environment(CudaGraphConfig config);

}  // namespace pianola
