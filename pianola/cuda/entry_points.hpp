#pragma once

/// Every entry point of the CUDA driver that Pianola calls: X(member of Driver, symbol, version of its signature).
/// The version picks one of the signatures that a symbol has had (PFN_<symbol>_v<version> in cudaTypedefs.h), so that
/// headers, loader and calls agree whatever <cuda.h> renames a symbol to. The newest version is the oldest driver
/// that will do: 12.4.
#define PIANOLA_DRIVER_ENTRY_POINTS(X)                                             \
  /* Start, devices, contexts. */                                                  \
  X(init, cuInit, 2000)                                                            \
  X(driver_get_version, cuDriverGetVersion, 2020)                                  \
  X(get_error_name, cuGetErrorName, 6000)                                          \
  X(get_error_string, cuGetErrorString, 6000)                                      \
  X(device_get_count, cuDeviceGetCount, 2000)                                      \
  X(device_get, cuDeviceGet, 2000)                                                 \
  X(device_get_name, cuDeviceGetName, 2000)                                        \
  X(device_get_attribute, cuDeviceGetAttribute, 2000)                              \
  X(device_total_mem, cuDeviceTotalMem, 3020)                                      \
  X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000)                     \
  X(device_primary_ctx_release, cuDevicePrimaryCtxRelease, 11000)                  \
  X(ctx_get_current, cuCtxGetCurrent, 4000)                                        \
  X(ctx_set_current, cuCtxSetCurrent, 4000)                                        \
  X(ctx_get_device, cuCtxGetDevice, 2000)                                          \
  /* Memory. */                                                                    \
  X(mem_get_info, cuMemGetInfo, 3020)                                              \
  X(mem_alloc, cuMemAlloc, 3020)                                                   \
  X(mem_free, cuMemFree, 3020)                                                     \
  X(memcpy_dtoh, cuMemcpyDtoH, 3020)                                               \
  X(memcpy_dtod_async, cuMemcpyDtoDAsync, 3020)                                    \
  X(pointer_get_attribute, cuPointerGetAttribute, 4000)                            \
  X(memset_d8_async, cuMemsetD8Async, 3020)                                        \
  X(mem_get_allocation_granularity, cuMemGetAllocationGranularity, 10020)          \
  X(mem_address_reserve, cuMemAddressReserve, 10020)                               \
  X(mem_address_free, cuMemAddressFree, 10020)                                     \
  X(mem_create, cuMemCreate, 10020)                                                \
  X(mem_release, cuMemRelease, 10020)                                              \
  X(mem_map, cuMemMap, 10020)                                                      \
  X(mem_unmap, cuMemUnmap, 10020)                                                  \
  X(mem_set_access, cuMemSetAccess, 10020)                                         \
  /* Kernels. */                                                                   \
  X(module_load_data, cuModuleLoadData, 2000)                                      \
  X(module_unload, cuModuleUnload, 2000)                                           \
  X(module_get_function, cuModuleGetFunction, 2000)                                \
  X(launch_kernel, cuLaunchKernel, 4000)                                           \
  X(func_get_name, cuFuncGetName, 12030)                                           \
  X(func_get_param_info, cuFuncGetParamInfo, 12040)                                \
  X(kernel_get_name, cuKernelGetName, 12030)                                       \
  X(kernel_get_param_info, cuKernelGetParamInfo, 12040)                            \
  /* Streams, events, capture. */                                                  \
  X(stream_create, cuStreamCreate, 2000)                                           \
  X(stream_destroy, cuStreamDestroy, 4000)                                         \
  X(stream_synchronize, cuStreamSynchronize, 2000)                                 \
  X(stream_wait_event, cuStreamWaitEvent, 3020)                                    \
  X(event_create, cuEventCreate, 2000)                                             \
  X(event_destroy, cuEventDestroy, 4000)                                           \
  X(event_record, cuEventRecord, 2000)                                             \
  X(stream_begin_capture, cuStreamBeginCapture, 10010)                             \
  X(stream_end_capture, cuStreamEndCapture, 10000)                                 \
  X(stream_is_capturing, cuStreamIsCapturing, 10000)                               \
  X(stream_get_capture_info, cuStreamGetCaptureInfo, 12030)                        \
  X(thread_exchange_stream_capture_mode, cuThreadExchangeStreamCaptureMode, 10010) \
  /* Graphs. */                                                                    \
  X(graph_create, cuGraphCreate, 10000)                                            \
  X(graph_destroy, cuGraphDestroy, 10000)                                          \
  X(graph_clone, cuGraphClone, 10000)                                              \
  X(graph_node_find_in_clone, cuGraphNodeFindInClone, 10000)                       \
  X(graph_destroy_node, cuGraphDestroyNode, 10000)                                 \
  X(graph_get_nodes, cuGraphGetNodes, 10000)                                       \
  X(graph_get_edges, cuGraphGetEdges, 12030)                                       \
  X(graph_add_dependencies, cuGraphAddDependencies, 12030)                         \
  X(graph_remove_dependencies, cuGraphRemoveDependencies, 12030)                   \
  X(graph_node_get_type, cuGraphNodeGetType, 10000)                                \
  X(graph_node_get_dependencies, cuGraphNodeGetDependencies, 12030)                \
  X(graph_add_kernel_node, cuGraphAddKernelNode, 12000)                            \
  X(graph_add_memcpy_node, cuGraphAddMemcpyNode, 10000)                            \
  X(graph_add_memset_node, cuGraphAddMemsetNode, 10000)                            \
  X(graph_add_empty_node, cuGraphAddEmptyNode, 10000)                              \
  X(graph_add_child_graph_node, cuGraphAddChildGraphNode, 10000)                   \
  X(graph_kernel_node_get_params, cuGraphKernelNodeGetParams, 12000)               \
  X(graph_memcpy_node_get_params, cuGraphMemcpyNodeGetParams, 10000)               \
  X(graph_memset_node_get_params, cuGraphMemsetNodeGetParams, 10000)               \
  X(graph_mem_alloc_node_get_params, cuGraphMemAllocNodeGetParams, 11040)          \
  X(graph_mem_free_node_get_params, cuGraphMemFreeNodeGetParams, 11040)            \
  X(graph_child_graph_node_get_graph, cuGraphChildGraphNodeGetGraph, 10000)        \
  /* Executables. */                                                               \
  X(graph_instantiate_with_params, cuGraphInstantiateWithParams, 12000)            \
  X(graph_upload, cuGraphUpload, 11010)                                            \
  X(graph_launch, cuGraphLaunch, 10000)                                            \
  X(graph_exec_update, cuGraphExecUpdate, 12000)                                   \
  X(graph_exec_kernel_node_set_params, cuGraphExecKernelNodeSetParams, 12000)      \
  X(graph_exec_memcpy_node_set_params, cuGraphExecMemcpyNodeSetParams, 10020)      \
  X(graph_exec_memset_node_set_params, cuGraphExecMemsetNodeSetParams, 10020)      \
  X(graph_exec_destroy, cuGraphExecDestroy, 10000)
