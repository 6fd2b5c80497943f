#pragma once
#include <pianola/torch_abi/torch_version.hpp>

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

// torch's tables of cuBLAS's workspaces, by handle and stream: of the memory alone up to 2.12, of the memory and its size since 2.13.

namespace pianola::torch_abi {

using Workspace = decltype(at::cuda::WorkspaceMapWithMutex::map)::mapped_type;
using WorkspaceMap = decltype(at::cuda::WorkspaceMapWithMutex::map);

/// Whether products find theirs in these tables. Since 2.15 each allocates its own and frees it again, unless
/// TORCH_CUBLAS_WORKSPACE_CACHE says otherwise.
#if PIANOLA_TORCH_AT_LEAST(2, 15)
inline bool keeps_workspaces() { return at::cuda::isCUDABlasWorkspaceCachingEnabled(); }
#else
inline bool keeps_workspaces() { return true; }
#endif

#if PIANOLA_TORCH_AT_LEAST(2, 13)

inline at::DataPtr& memory_of(Workspace& workspace) { return workspace.first; }
inline const at::DataPtr& memory_of(const Workspace& workspace) { return workspace.first; }
/// @param chosen  What torch is set to give each, which is the size of all where the table does not tell.
inline std::size_t bytes_of(const Workspace& workspace, std::size_t /*chosen*/) { return workspace.second; }
inline Workspace make_workspace(at::DataPtr memory, std::size_t bytes) { return {std::move(memory), bytes}; }

#else

inline at::DataPtr& memory_of(Workspace& workspace) { return workspace; }
inline const at::DataPtr& memory_of(const Workspace& workspace) { return workspace; }
/// @param chosen  What torch is set to give each, which is the size of all where the table does not tell.
inline std::size_t bytes_of(const Workspace& /*workspace*/, std::size_t chosen) { return chosen; }
inline Workspace make_workspace(at::DataPtr memory, std::size_t /*bytes*/) { return memory; }

#endif

}  // namespace pianola::torch_abi
