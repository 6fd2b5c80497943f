#include <pianola/cuda/node_reader.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/error_codes.hpp>
#include <pianola/cuda/kernel_name.hpp>
#include <pianola/cuda/topology.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace pianola {
namespace {

// Fills in name and parameters by the given pair of entry points. False where the handle is not of their kind.
template <class Handle, class GetName, class GetParamInfo>
bool read_function(KernelFunction& function, Handle handle, GetName get_name, GetParamInfo get_param_info) {
  const char* symbol = nullptr;
  if (get_name(&symbol, handle) != CUDA_SUCCESS || symbol == nullptr) return false;
  function.symbol = symbol;
  // There is no count: the driver refuses the first index that is too large.
  KernelParameter parameter{};
  while (get_param_info(handle, function.parameters.size(), &parameter.offset, &parameter.size) == CUDA_SUCCESS) {
    function.parameters.push_back(parameter);
  }
  return true;
}

KernelFunction read_function(const CUDA_KERNEL_NODE_PARAMS_v2& params, const Driver& driver) {
  KernelFunction function;
  // The runtime may pass a CUkernel in the place of a CUfunction, which the driver accepts for launches.
  CUkernel kernel = params.func == nullptr ? params.kern : reinterpret_cast<CUkernel>(params.func);
  const bool is_function =
      params.func != nullptr && read_function(function, params.func, driver.func_get_name, driver.func_get_param_info);
  if (!is_function && kernel != nullptr) {
    read_function(function, kernel, driver.kernel_get_name, driver.kernel_get_param_info);
  }
  function.name = function.symbol.empty() ? "(unnamed)" : demangle(function.symbol);
  function.short_name = function.symbol.empty() ? function.name : short_kernel_name(function.name);
  return function;
}

// The arguments of a launch by `extra`: a list of tagged pointers that holds the whole block.
std::span<const std::byte> block_of(void* const* extra) {
  const std::byte* block = nullptr;
  std::size_t bytes = 0;
  for (; *extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) block = static_cast<const std::byte*>(extra[1]);
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const std::size_t*>(extra[1]);
  }
  return block == nullptr ? std::span<const std::byte>() : std::span(block, bytes);
}

std::vector<std::byte> arguments_of(const CUDA_KERNEL_NODE_PARAMS_v2& params, const KernelFunction& function) {
  std::size_t size = 0;
  for (const KernelParameter& parameter : function.parameters) size = std::max(size, parameter.offset + parameter.size);
  std::vector<std::byte> arguments(size);
  if (params.kernelParams != nullptr) {
    for (std::size_t i = 0; i < function.parameters.size(); ++i) {
      const KernelParameter& parameter = function.parameters[i];
      std::memcpy(arguments.data() + parameter.offset, params.kernelParams[i], parameter.size);
    }
    return arguments;
  }
  if (params.extra == nullptr) return {};
  const std::span<const std::byte> block = block_of(params.extra);
  if (block.empty()) return {};
  std::copy_n(block.begin(), std::min(block.size(), size), arguments.begin());
  return arguments;
}

CUdeviceptr start_of(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t offset) {
  if (type == CU_MEMORYTYPE_ARRAY) return 0;
  return (type == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uintptr_t>(host) : device) + offset;
}

}  // namespace

GraphNode NodeReader::read(CUgraphNode handle) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  check(driver_.graph_node_get_type(handle, &type), "cuGraphNodeGetType");
  GraphNode node{.handle = handle, .type = node_type(type)};
  if (node.type == NodeType::kernel) read_kernel(node);
  if (node.type == NodeType::memcpy) read_memcpy(node);
  if (node.type == NodeType::memset) read_memset(node);
  if (node.type == NodeType::mem_alloc || node.type == NodeType::mem_free) read_memory(node);
  if (node.type == NodeType::child_graph) read_child(node);
  return node;
}

void NodeReader::read_kernel(GraphNode& node) {
  CUDA_KERNEL_NODE_PARAMS_v2 params = {};
  if (driver_.graph_kernel_node_get_params(node.handle, &params) != CUDA_SUCCESS) return;
  KernelNode kernel{.function = function_of(params),
                    .grid = {params.gridDimX, params.gridDimY, params.gridDimZ},
                    .block = {params.blockDimX, params.blockDimY, params.blockDimZ},
                    .shared_bytes = params.sharedMemBytes,
                    .arguments = {}};
  kernel.arguments = arguments_of(params, *kernel.function);
  node.details = std::move(kernel);
}

const NodeReader::Function& NodeReader::function_of(const CUDA_KERNEL_NODE_PARAMS_v2& params) {
  const void* key = params.func != nullptr ? static_cast<const void*>(params.func) : params.kern;
  Function& function = functions_[key];
  if (!function) function = std::make_shared<const KernelFunction>(read_function(params, driver_));
  return function;
}

void NodeReader::read_memcpy(GraphNode& node) const {
  CUDA_MEMCPY3D_v2 p = {};
  if (driver_.graph_memcpy_node_get_params(node.handle, &p) != CUDA_SUCCESS) return;
  const std::size_t rows = std::max<std::size_t>(p.Height, 1) * std::max<std::size_t>(p.Depth, 1);
  const std::size_t source = p.srcXInBytes + p.srcPitch * (p.srcY + p.srcHeight * p.srcZ);
  const std::size_t destination = p.dstXInBytes + p.dstPitch * (p.dstY + p.dstHeight * p.dstZ);
  node.details = MemcpyNode{.source = start_of(p.srcMemoryType, p.srcHost, p.srcDevice, source),
                            .destination = start_of(p.dstMemoryType, p.dstHost, p.dstDevice, destination),
                            .source_type = p.srcMemoryType,
                            .destination_type = p.dstMemoryType,
                            .bytes = p.WidthInBytes * rows,
                            .rows = rows};
}

void NodeReader::read_memset(GraphNode& node) const {
  CUDA_MEMSET_NODE_PARAMS_v1 p = {};
  if (driver_.graph_memset_node_get_params(node.handle, &p) != CUDA_SUCCESS) return;
  const std::size_t rows = std::max<std::size_t>(p.height, 1);
  node.details = MemsetNode{.destination = p.dst,
                            .value = p.value,
                            .element_bytes = p.elementSize,
                            .bytes = p.width * p.elementSize * rows,
                            .rows = rows};
}

void NodeReader::read_memory(GraphNode& node) const {
  MemoryNode memory;
  CUresult result = CUDA_SUCCESS;
  if (node.type == NodeType::mem_alloc) {
    CUDA_MEM_ALLOC_NODE_PARAMS_v1 params = {};
    result = driver_.graph_mem_alloc_node_get_params(node.handle, &params);
    memory = {.address = params.dptr, .bytes = params.bytesize};
  } else {
    result = driver_.graph_mem_free_node_get_params(node.handle, &memory.address);
  }
  if (result == CUDA_SUCCESS) node.details = memory;
}

void NodeReader::read_child(GraphNode& node) {
  CUgraph graph = nullptr;
  if (driver_.graph_child_graph_node_get_graph(node.handle, &graph) != CUDA_SUCCESS) return;
  node.details = ChildGraphNode{std::make_shared<const GraphTopology>(GraphTopology::read(graph, driver_))};
}

std::string describe_node(CUgraphNode node, const Driver& driver) {
  try {
    return to_string(NodeReader(driver).read(node));
  } catch (const DeviceError&) {
    return "a node";
  }
}

}  // namespace pianola
