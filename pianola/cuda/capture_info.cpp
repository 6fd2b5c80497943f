#include <pianola/cuda/capture_info.hpp>

#include <pianola/cuda/error_codes.hpp>

namespace pianola {
namespace {

constexpr std::size_t kUsualDependencies = 8;

struct OpenCapture {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  std::span<const CUgraphNode> tips = {};  // the driver's, until its next call
};

OpenCapture query(CUstream stream, const Driver& driver) {
  OpenCapture found;
  const CUgraphNode* tips = nullptr;
  const CUgraphEdgeData* edge_data = nullptr;  // asked for, since without it a programmatic edge fails the query
  std::size_t count = 0;
  const CUresult result =
      driver.stream_get_capture_info(stream, &found.status, &found.id, &found.graph, &tips, &edge_data, &count);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return {};
  check(result, "cuStreamGetCaptureInfo");
  found.tips = {tips, count};
  return found;
}

}  // namespace

CaptureStatus capture_status(CUstream stream, const Driver& driver) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.stream_is_capturing(stream, &status);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return CaptureStatus::none;
  check(result, "cuStreamIsCapturing");
  switch (status) {
    case CU_STREAM_CAPTURE_STATUS_NONE:
      return CaptureStatus::none;
    case CU_STREAM_CAPTURE_STATUS_ACTIVE:
      return CaptureStatus::active;
    case CU_STREAM_CAPTURE_STATUS_INVALIDATED:
      return CaptureStatus::invalidated;
  }
  return CaptureStatus::invalidated;
}

std::uint64_t capture_id(CUstream stream, const Driver& driver) {
  const OpenCapture open = query(stream, driver);
  return open.status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : open.id;
}

std::span<const CUgraphNode> CaptureFrontier::advance(CUstream stream) {
  walk_back_from_tips(stream);
  return fresh_;
}

std::span<const CUgraphNode> CaptureFrontier::advance_everywhere(CUstream stream) {
  const CUgraph graph = walk_back_from_tips(stream);
  if (graph == nullptr) return {};
  std::size_t count = 0;
  check(driver_->graph_get_nodes(graph, nullptr, &count), "cuGraphGetNodes");
  std::vector<CUgraphNode> all(count);
  check(driver_->graph_get_nodes(graph, all.data(), &count), "cuGraphGetNodes");
  all.resize(count);
  for (CUgraphNode node : all) walk_back_from(node);
  return fresh_;
}

CUgraph CaptureFrontier::walk_back_from_tips(CUstream stream) {
  fresh_.clear();
  const OpenCapture open = query(stream, *driver_);
  if (open.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return nullptr;
  if (open.id != capture_id_) {
    known_.clear();
    capture_id_ = open.id;
  }
  tips_.assign(open.tips.begin(), open.tips.end());
  for (CUgraphNode tip : tips_) walk_back_from(tip);
  return open.graph;
}

void CaptureFrontier::walk_back_from(CUgraphNode node) {
  path_.clear();
  dependencies_.clear();
  if (known_.insert(node)) enter(node);
  while (!path_.empty()) {
    Frame& frame = path_.back();
    if (frame.next < frame.end) {
      CUgraphNode dependency = dependencies_[frame.next++];
      if (known_.insert(dependency)) enter(dependency);
      continue;
    }
    fresh_.push_back(frame.node);
    dependencies_.resize(frame.begin);
    path_.pop_back();
  }
}

void CaptureFrontier::enter(CUgraphNode node) {
  const std::size_t begin = dependencies_.size();
  std::size_t room = kUsualDependencies;
  std::size_t count = 0;
  for (;;) {
    dependencies_.resize(begin + room);
    edge_data_.resize(room);
    count = room;
    check(driver_->graph_node_get_dependencies(node, dependencies_.data() + begin, edge_data_.data(), &count),
          "cuGraphNodeGetDependencies");
    if (count < room) break;
    room *= 4;  // It may have cut the list off.
  }
  dependencies_.resize(begin + count);
  path_.push_back({node, begin, begin, begin + count});
}

}  // namespace pianola
