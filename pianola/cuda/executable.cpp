#include <pianola/cuda/executable.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/capture_mode.hpp>
#include <pianola/cuda/node_reader.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace pianola {
namespace {

std::uint64_t flags_of(const InstantiateOptions& options) {
  if (options.device_launch && options.auto_free_on_launch) {
    throw UsageError({.what = "device_launch and auto_free_on_launch exclude each other", .fix = "set only one"});
  }
  std::uint64_t flags = 0;
  if (options.auto_free_on_launch) flags |= CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
  if (options.use_node_priority) flags |= CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (options.device_launch) flags |= CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
  if (options.upload_on) flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  return flags;
}

// Empty where the result code says it all.
std::string_view reason_of(CUgraphInstantiateResult result) {
  switch (result) {
    case CUDA_GRAPH_INSTANTIATE_SUCCESS:
    case CUDA_GRAPH_INSTANTIATE_ERROR:
      return "";
    case CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE:
      return "the graph's structure is invalid, such as a cycle";
    case CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED:
      return "a graph for device launch cannot hold such a node";
    case CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED:
      return "its nodes belong to different contexts";
    case CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED:
      return "a conditional handle has no conditional node";
  }
  return "";
}

std::string_view reason_of(CUgraphExecUpdateResult result) {
  switch (result) {
    case CU_GRAPH_EXEC_UPDATE_SUCCESS:
    case CU_GRAPH_EXEC_UPDATE_ERROR:
      return "CUDA gives no reason";
    case CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED:
      return "the graphs differ in the number of nodes or in their edges";
    case CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED:
      return "a node is of another type";
    case CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED:
    case CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE:
      return "a node's kernel changed in a way that cannot be updated";
    case CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED:
      return "a node's parameters changed in a way that cannot be updated";
    case CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED:
      return "a node is of a kind that cannot be updated";
    case CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED:
      return "a node's attributes changed in a way that cannot be updated";
  }
  return "for a reason that this version does not know";
}

Diagnosis why_not(CUresult result, const CUDA_GRAPH_INSTANTIATE_PARAMS& params, const Driver& driver) {
  std::string where = params.hErrNode_out == nullptr ? "" : "node: " + describe_node(params.hErrNode_out, driver);
  Diagnosis diagnosis = diagnose(result, "cuGraphInstantiate", std::move(where));
  const std::string_view reason = reason_of(params.result_out);
  if (!reason.empty()) diagnosis.what += fmt::format("; {}", reason);
  return diagnosis;
}

}  // namespace

Executable Executable::instantiate(CUgraph graph, const InstantiateOptions& options, const Driver& driver) {
  CUDA_GRAPH_INSTANTIATE_PARAMS params = {};
  params.flags = flags_of(options);
  params.hUploadStream = options.upload_on.value_or(nullptr);
  CUgraphExec exec = nullptr;
  const RelaxedCaptureMode relaxed(driver);  // Another capture of this thread does not mind.
  const CUresult result = driver.graph_instantiate_with_params(&exec, graph, &params);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    Diagnosis no_room = why_not(result, params, driver);
    no_room.rule = "PG908";
    throw OutOfMemoryError(std::move(no_room));
  }
  if (result != CUDA_SUCCESS) throw DeviceError(why_not(result, params, driver));
  return Executable(exec, driver);
}

Executable::Executable(Executable&& other) noexcept
    : exec_(other.release()), launch_(other.launch_), driver_(other.driver_) {}

Executable& Executable::operator=(Executable&& other) noexcept {
  if (this == &other) return *this;
  reset();
  exec_ = other.release();
  launch_ = other.launch_;
  driver_ = other.driver_;
  return *this;
}

void Executable::upload(CUstream stream) const { check(driver_->graph_upload(exec_, stream), "cuGraphUpload"); }

std::optional<UpdateRefusal> Executable::update(CUgraph graph) {
  CUgraphExecUpdateResultInfo info = {};
  CUresult result = CUDA_SUCCESS;
  {
    const RelaxedCaptureMode relaxed(*driver_);
    result = driver_->graph_exec_update(exec_, graph, &info);
  }
  if (result == CUDA_SUCCESS) return std::nullopt;
  if (result != CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE) throw_device_error(result, "cuGraphExecUpdate");
  UpdateRefusal refusal{.result = info.result, .reason = std::string(reason_of(info.result)), .node = info.errorNode};
  if (refusal.node != nullptr) refusal.node_text = describe_node(refusal.node, *driver_);
  return refusal;
}

void Executable::reset() noexcept {
  CUgraphExec exec = release();
  if (exec == nullptr) return;
  const RelaxedCaptureMode relaxed(*driver_);
  const CUresult result = driver_->graph_exec_destroy(exec);
  // At the end of the program the driver may be gone already, and the executable with it.
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED) return;
  const CaptureCode words = describe(result);
  std::fprintf(stderr, "pianola: cuGraphExecDestroy failed with code %d: %.*s\n", static_cast<int>(result),
               static_cast<int>(words.meaning.size()), words.meaning.data());
}

}  // namespace pianola
