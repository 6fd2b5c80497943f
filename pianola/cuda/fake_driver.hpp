#pragma once
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/graph_node.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pianola {

/// A driver without a GPU, for tests: graphs, streams and executables are plain data that the test fills in, every call
/// is logged, and any call can be made to fail. One at a time per thread; the table acts on the newest.
class FakeDriver {
 public:
  struct Graph;
  struct Function {
    std::string symbol;
    std::vector<KernelParameter> parameters;
  };
  struct Edge {
    CUgraphNode from;
    CUgraphEdgeData data = {};
  };
  struct Node {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    std::vector<Edge> dependencies = {};
    CUDA_KERNEL_NODE_PARAMS_v2 kernel = {};
    CUDA_MEMCPY3D_v2 memcpy = {};
    CUDA_MEMSET_NODE_PARAMS_v1 memset = {};
    MemoryNode memory = {};
    Graph* child = nullptr;
  };
  struct Graph {
    std::deque<Node> nodes;

    CUgraphNode add(Node node) { return reinterpret_cast<CUgraphNode>(&nodes.emplace_back(std::move(node))); }
    CUgraphNode add_empty(const std::vector<CUgraphNode>& dependencies = {}) {
      Node node;
      for (CUgraphNode from : dependencies) node.dependencies.push_back({from});
      return add(std::move(node));
    }
    CUgraph handle() { return reinterpret_cast<CUgraph>(this); }
  };
  struct Stream {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t capture_id = 0;
    std::vector<CUgraphNode> tips = {};
    std::vector<CUgraphEdgeData> tip_data = {};
    Graph* graph = nullptr;

    CUstream handle() { return reinterpret_cast<CUstream>(this); }
  };

  FakeDriver() : previous_(std::exchange(current_, this)) { fill(table_); }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;
  ~FakeDriver() { current_ = previous_; }

  [[nodiscard]] const Driver& table() const { return table_; }
  [[nodiscard]] std::size_t calls(const std::string& name) const {
    return static_cast<std::size_t>(std::count(log.begin(), log.end(), name));
  }
  static CUfunction as_function(Function& function) { return reinterpret_cast<CUfunction>(&function); }
  static CUkernel as_kernel(Function& function) { return reinterpret_cast<CUkernel>(&function); }

  std::vector<std::string> log;                     ///< Names of the calls, in order.
  std::map<std::string, CUresult> failures;         ///< What calls return instead of doing anything, by name.
  std::vector<const void*> live;                    ///< Executables that were made and not destroyed.
  CUDA_GRAPH_INSTANTIATE_PARAMS instantiated = {};  ///< In: of the last instantiation.
  CUgraphNode error_node = nullptr;                 ///< Out: of a failing instantiation or update.
  CUgraphInstantiateResult instantiate_result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  CUgraphExecUpdateResult update_result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;  ///< Of the thread.
  CUstreamCaptureMode mode_at_destroy = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  struct KernelSet {
    CUgraphNode node;
    std::vector<std::vector<std::byte>> arguments;
  };
  std::vector<KernelSet> kernels_set;  ///< In executables.
  struct CopySet {
    CUgraphNode node;
    CUDA_MEMCPY3D_v2 params;
  };
  std::vector<CopySet> copies_set;  ///< In executables.
  struct FillSet {
    CUgraphNode node;
    CUDA_MEMSET_NODE_PARAMS_v1 params;
  };
  std::vector<FillSet> fills_set;             ///< In executables.
  std::vector<CUdeviceptr> device_addresses;  ///< That are CUDA's memory.
  std::vector<Function*> kernels_only;        ///< Functions whose handle is a CUkernel, not a CUfunction.
  static constexpr std::size_t kMappingUnit = 2U << 20U;
  CUdeviceptr next_address = kMappingUnit;
  std::size_t reserved = 0, mapped = 0,
              handles = 0;  ///< Bytes of addresses, of memory behind them, of handles to memory.

 private:
  static FakeDriver& fake() { return *current_; }
  static Node& node(CUgraphNode handle) { return *reinterpret_cast<Node*>(handle); }

  CUresult call(const char* name) {
    log.emplace_back(name);
    const auto failure = failures.find(name);
    return failure == failures.end() ? CUDA_SUCCESS : failure->second;
  }

  static CUresult function_name(const char** name, const Function& function) {
    *name = function.symbol.c_str();
    return CUDA_SUCCESS;
  }
  static CUresult parameter_info(const Function& function, std::size_t i, std::size_t* offset, std::size_t* size) {
    if (i >= function.parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = function.parameters[i].offset;
    *size = function.parameters[i].size;
    return CUDA_SUCCESS;
  }
  static bool is_kernel_only(const void* handle) {
    const auto& list = fake().kernels_only;
    return std::find(list.begin(), list.end(), handle) != list.end();
  }

  static void fill(Driver& d) {
    fill_streams(d);
    fill_kernels(d);
    fill_nodes(d);
    fill_graphs(d);
    fill_executables(d);
    fill_mapping(d);
    d.pointer_get_attribute = [](void* data, CUpointer_attribute, CUdeviceptr address) {
      const auto& known = fake().device_addresses;
      if (std::find(known.begin(), known.end(), address) == known.end()) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<unsigned*>(data) = CU_MEMORYTYPE_DEVICE;
      return fake().call("cuPointerGetAttribute");
    };
    d.mem_get_info = [](std::size_t* free, std::size_t* total) {
      *free = fake().free_bytes;
      *total = fake().total_bytes;
      return fake().call("cuMemGetInfo");
    };
  }

  static void fill_mapping(Driver& d) {
    d.mem_get_allocation_granularity = [](std::size_t* unit, const CUmemAllocationProp*,
                                          CUmemAllocationGranularity_flags) {
      *unit = kMappingUnit;
      return fake().call("cuMemGetAllocationGranularity");
    };
    d.mem_address_reserve = [](CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
      const CUresult result = fake().call("cuMemAddressReserve");
      if (result != CUDA_SUCCESS) return result;
      *address = fake().next_address;
      fake().next_address += bytes;
      fake().reserved += bytes;
      return result;
    };
    d.mem_address_free = [](CUdeviceptr, std::size_t bytes) {
      fake().reserved -= bytes;
      return fake().call("cuMemAddressFree");
    };
    d.mem_create = [](CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*,
                      unsigned long long) {
      const CUresult result = fake().call("cuMemCreate");
      if (result != CUDA_SUCCESS) return result;
      *handle = bytes;
      fake().handles += bytes;
      return result;
    };
    d.mem_release = [](CUmemGenericAllocationHandle handle) {
      fake().handles -= handle;
      return fake().call("cuMemRelease");
    };
    d.mem_map = [](CUdeviceptr, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle, unsigned long long) {
      const CUresult result = fake().call("cuMemMap");
      if (result == CUDA_SUCCESS) fake().mapped += bytes;
      return result;
    };
    d.mem_unmap = [](CUdeviceptr, std::size_t bytes) {
      const CUresult result = fake().call("cuMemUnmap");
      if (result == CUDA_SUCCESS) fake().mapped -= bytes;
      return result;
    };
    d.mem_set_access = [](CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
      return fake().call("cuMemSetAccess");
    };
  }

  static void fill_streams(Driver& d) {
    d.thread_exchange_stream_capture_mode = [](CUstreamCaptureMode* exchanged) {
      std::swap(*exchanged, fake().mode);
      return fake().call("cuThreadExchangeStreamCaptureMode");
    };
    d.stream_is_capturing = [](CUstream stream, CUstreamCaptureStatus* status) {
      *status = reinterpret_cast<Stream*>(stream)->status;
      return fake().call("cuStreamIsCapturing");
    };
    d.stream_get_capture_info = [](CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** tips, const CUgraphEdgeData** data, std::size_t* count) {
      Stream& stream = *reinterpret_cast<Stream*>(handle);
      stream.tip_data.resize(stream.tips.size());
      *status = stream.status;
      *id = stream.capture_id;
      if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(stream.graph);
      *tips = stream.tips.data();
      *data = stream.tip_data.data();
      *count = stream.tips.size();
      return fake().call("cuStreamGetCaptureInfo");
    };
  }

  static void fill_kernels(Driver& d) {
    d.func_get_name = [](const char** name, CUfunction handle) {
      if (is_kernel_only(handle)) return CUDA_ERROR_INVALID_HANDLE;
      return function_name(name, *reinterpret_cast<Function*>(handle));
    };
    d.func_get_param_info = [](CUfunction handle, std::size_t i, std::size_t* offset, std::size_t* size) {
      return parameter_info(*reinterpret_cast<Function*>(handle), i, offset, size);
    };
    d.kernel_get_name = [](const char** name, CUkernel handle) {
      const CUresult result = fake().call("cuKernelGetName");
      return result != CUDA_SUCCESS ? result : function_name(name, *reinterpret_cast<Function*>(handle));
    };
    d.kernel_get_param_info = [](CUkernel handle, std::size_t i, std::size_t* offset, std::size_t* size) {
      return parameter_info(*reinterpret_cast<Function*>(handle), i, offset, size);
    };
  }

  static void fill_nodes(Driver& d) {
    d.graph_node_get_type = [](CUgraphNode handle, CUgraphNodeType* type) {
      *type = node(handle).type;
      return fake().call("cuGraphNodeGetType");
    };
    d.graph_kernel_node_get_params = [](CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v2* params) {
      *params = node(handle).kernel;
      return fake().call("cuGraphKernelNodeGetParams");
    };
    d.graph_memcpy_node_get_params = [](CUgraphNode handle, CUDA_MEMCPY3D_v2* params) {
      *params = node(handle).memcpy;
      return fake().call("cuGraphMemcpyNodeGetParams");
    };
    d.graph_memset_node_get_params = [](CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS_v1* params) {
      *params = node(handle).memset;
      return fake().call("cuGraphMemsetNodeGetParams");
    };
    d.graph_mem_alloc_node_get_params = [](CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS_v1* params) {
      params->dptr = node(handle).memory.address;
      params->bytesize = node(handle).memory.bytes;
      return fake().call("cuGraphMemAllocNodeGetParams");
    };
    d.graph_mem_free_node_get_params = [](CUgraphNode handle, CUdeviceptr* address) {
      *address = node(handle).memory.address;
      return fake().call("cuGraphMemFreeNodeGetParams");
    };
    d.graph_child_graph_node_get_graph = [](CUgraphNode handle, CUgraph* graph) {
      *graph = node(handle).child->handle();
      return fake().call("cuGraphChildGraphNodeGetGraph");
    };
    d.graph_node_get_dependencies = [](CUgraphNode handle, CUgraphNode* from, CUgraphEdgeData* data, std::size_t* n) {
      const std::vector<Edge>& edges = node(handle).dependencies;
      const std::size_t count = from == nullptr ? edges.size() : std::min(*n, edges.size());
      for (std::size_t i = 0; from != nullptr && i < count; ++i) {
        if (data == nullptr && edges[i].data.type != 0) return CUDA_ERROR_LOSSY_QUERY;
        from[i] = edges[i].from;
        if (data != nullptr) data[i] = edges[i].data;
      }
      *n = count;
      return fake().call("cuGraphNodeGetDependencies");
    };
  }

  static void fill_graphs(Driver& d) {
    // A clone is the graph itself: enough for a test in which a call fails.
    d.graph_clone = [](CUgraph* clone, CUgraph graph) {
      *clone = graph;
      return fake().call("cuGraphClone");
    };
    d.graph_destroy = [](CUgraph) { return fake().call("cuGraphDestroy"); };
    d.graph_get_nodes = [](CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
      std::deque<Node>& all = reinterpret_cast<Graph*>(graph)->nodes;
      for (std::size_t i = 0; nodes != nullptr && i < all.size(); ++i)
        nodes[i] = reinterpret_cast<CUgraphNode>(&all[i]);
      *count = all.size();
      return fake().call("cuGraphGetNodes");
    };
    d.graph_get_edges = [](CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, std::size_t* n) {
      std::size_t count = 0;
      for (Node& each : reinterpret_cast<Graph*>(graph)->nodes) {
        for (const Edge& edge : each.dependencies) {
          if (from != nullptr) {
            from[count] = edge.from;
            to[count] = reinterpret_cast<CUgraphNode>(&each);
            data[count] = edge.data;
          }
          ++count;
        }
      }
      *n = count;
      return fake().call("cuGraphGetEdges");
    };
  }

  static void fill_executables(Driver& d) {
    d.graph_instantiate_with_params = [](CUgraphExec* exec, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
      fake().instantiated = *params;
      params->result_out = fake().instantiate_result;
      params->hErrNode_out = fake().error_node;
      const CUresult result = fake().call("cuGraphInstantiateWithParams");
      if (result != CUDA_SUCCESS) return result;
      *exec = reinterpret_cast<CUgraphExec>(new char);
      fake().live.push_back(*exec);
      return result;
    };
    d.graph_upload = [](CUgraphExec, CUstream) { return fake().call("cuGraphUpload"); };
    d.graph_launch = [](CUgraphExec, CUstream) { return fake().call("cuGraphLaunch"); };
    d.graph_exec_update = [](CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo* info) {
      info->result = fake().update_result;
      info->errorNode = fake().error_node;
      return fake().call("cuGraphExecUpdate");
    };
    d.graph_exec_kernel_node_set_params = [](CUgraphExec, CUgraphNode handle,
                                             const CUDA_KERNEL_NODE_PARAMS_v2* params) {
      const CUresult result = fake().call("cuGraphExecKernelNodeSetParams");
      if (result != CUDA_SUCCESS) return result;
      KernelSet& set = fake().kernels_set.emplace_back(KernelSet{.node = handle, .arguments = {}});
      const auto& parameters = reinterpret_cast<Function*>(params->func)->parameters;
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto* bytes = static_cast<const std::byte*>(params->kernelParams[i]);
        set.arguments.emplace_back(bytes, bytes + parameters[i].size);
      }
      return result;
    };
    d.ctx_get_current = [](CUcontext* context) {
      *context = nullptr;
      return fake().call("cuCtxGetCurrent");
    };
    d.graph_exec_memcpy_node_set_params = [](CUgraphExec, CUgraphNode handle, const CUDA_MEMCPY3D_v2* params,
                                             CUcontext) {
      const CUresult result = fake().call("cuGraphExecMemcpyNodeSetParams");
      if (result == CUDA_SUCCESS) fake().copies_set.push_back({.node = handle, .params = *params});
      return result;
    };
    d.graph_exec_memset_node_set_params = [](CUgraphExec, CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS_v1* params,
                                             CUcontext) {
      const CUresult result = fake().call("cuGraphExecMemsetNodeSetParams");
      if (result == CUDA_SUCCESS) fake().fills_set.push_back({.node = handle, .params = *params});
      return result;
    };
    d.graph_exec_destroy = [](CUgraphExec exec) {
      fake().mode_at_destroy = fake().mode;
      std::erase(fake().live, static_cast<const void*>(exec));
      delete reinterpret_cast<char*>(exec);
      return fake().call("cuGraphExecDestroy");
    };
  }

  static inline thread_local FakeDriver* current_ = nullptr;
  FakeDriver* previous_;
  Driver table_ = {};
};

}  // namespace pianola
