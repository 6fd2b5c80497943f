#pragma once
#include <pianola/torch_abi/torch_version.hpp>

// torch's own graph for any device: an implementation is registered under the name of a type of device, and
// at::create_graph_impl() makes one. Since 2.12.

#define PIANOLA_TORCH_HAS_GRAPHS PIANOLA_TORCH_AT_LEAST(2, 12)

#if PIANOLA_TORCH_HAS_GRAPHS
#include <ATen/core/GraphImplInterface.h>
#endif
