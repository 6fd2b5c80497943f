#include <pianola/graph/cuda/blas_workspaces.hpp>

#include <pianola/torch_abi/cuda/workspace_size.hpp>
#include <pianola/trace/op_info.hpp>

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <utility>

namespace pianola::graph {

namespace {

// Replaces the entries of `stream` in torch's table by `incoming`; returns those that were there.
BlasWorkspaces::Map exchange(at::cuda::WorkspaceMapWithMutex& table, cudaStream_t stream,
                             BlasWorkspaces::Map incoming) {
  const std::unique_lock lock(table.mutex);
  BlasWorkspaces::Map outgoing;
  for (auto entry = table.map.begin(); entry != table.map.end();) {
    const auto here = entry++;
    if (std::get<1>(here->first) == static_cast<void*>(stream)) outgoing.insert(table.map.extract(here));
  }
  table.map.merge(incoming);
  return outgoing;
}

}  // namespace

BlasWorkspaces::Scope::Scope(BlasWorkspaces& own, cudaStream_t stream) : own_(own), stream_(stream) {
  const std::lock_guard lock(own_.mutex_);
  outer_gemm_ = exchange(at::cuda::cublas_handle_stream_to_workspace(), stream, std::move(own.gemm_));
  outer_lt_ = exchange(at::cuda::cublaslt_handle_stream_to_workspace(), stream, std::move(own.lt_));
}

BlasWorkspaces::Scope::~Scope() {
  const std::lock_guard lock(own_.mutex_);
  own_.gemm_ = exchange(at::cuda::cublas_handle_stream_to_workspace(), stream_, std::move(outer_gemm_));
  own_.lt_ = exchange(at::cuda::cublaslt_handle_stream_to_workspace(), stream_, std::move(outer_lt_));
}

std::vector<ByteSpan> BlasWorkspaces::spans_on(cudaStream_t stream) {
  std::vector<ByteSpan> spans;
  const auto add = [&](at::cuda::WorkspaceMapWithMutex& table, std::size_t bytes) {
    const std::shared_lock lock(table.mutex);
    for (const auto& [key, workspace] : table.map) {
      if (std::get<1>(key) != static_cast<void*>(stream)) continue;
      const auto begin = reinterpret_cast<std::uintptr_t>(torch_abi::memory_of(workspace).get());
      spans.push_back({.begin = begin, .end = begin + torch_abi::bytes_of(workspace, bytes)});
    }
  };
  add(at::cuda::cublas_handle_stream_to_workspace(), torch_abi::gemm_workspace_bytes());
  add(at::cuda::cublaslt_handle_stream_to_workspace(), at::cuda::getCUDABlasLtWorkspaceSize());
  return spans;
}

void BlasWorkspaces::forget(cudaStream_t stream, const ByteSpan& bytes) noexcept {
  const auto forget_in = [&](at::cuda::WorkspaceMapWithMutex& table) {
    Map gone;  // freed without the lock
    const std::unique_lock lock(table.mutex);
    for (auto entry = table.map.begin(); entry != table.map.end();) {
      const auto here = entry++;
      const auto begin = reinterpret_cast<std::uintptr_t>(torch_abi::memory_of(here->second).get());
      if (std::get<1>(here->first) == static_cast<void*>(stream) && bytes.contains(begin)) {
        gone.insert(table.map.extract(here));
      }
    }
  };
  forget_in(at::cuda::cublas_handle_stream_to_workspace());
  forget_in(at::cuda::cublaslt_handle_stream_to_workspace());
}

std::vector<ByteSpan> BlasWorkspaces::spans() const {
  std::vector<ByteSpan> spans;
  const auto add = [&](const Map& map, std::size_t bytes) {
    for (const auto& [key, workspace] : map) {
      const auto begin = reinterpret_cast<std::uintptr_t>(torch_abi::memory_of(workspace).get());
      spans.push_back({.begin = begin, .end = begin + torch_abi::bytes_of(workspace, bytes)});
    }
  };
  const std::lock_guard lock(mutex_);
  add(gemm_, torch_abi::gemm_workspace_bytes());
  add(lt_, at::cuda::getCUDABlasLtWorkspaceSize());
  return spans;
}

void BlasWorkspaces::clear() {
  const std::lock_guard lock(mutex_);
  gemm_.clear();
  lt_.clear();
}

void BlasWorkspaces::record_stream(c10::cuda::CUDAStream stream) const {
  for (const Map* map : {&gemm_, &lt_}) {
    for (const auto& [key, workspace] : *map)
      c10::cuda::CUDACachingAllocator::recordStream(torch_abi::memory_of(workspace), stream);
  }
}

namespace {

// cuBLAS asks for workspaces at such addresses.
constexpr std::size_t kAlignment = 256;

std::size_t gemm_bytes() { return (torch_abi::gemm_workspace_bytes() + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::size_t least_workspace_bytes() {
  const std::size_t least = std::min(torch_abi::gemm_workspace_bytes(), at::cuda::getCUDABlasLtWorkspaceSize());
  return least == 0 ? std::numeric_limits<std::size_t>::max() : least;
}

std::size_t WorkspaceColours::bytes_each() { return gemm_bytes() + at::cuda::getCUDABlasLtWorkspaceSize(); }

void WorkspaceColours::reserve(std::size_t count, c10::cuda::CUDAStream stream) {
  const c10::cuda::CUDAStreamGuard on_stream(stream);
  const std::lock_guard lock(mutex_);
  std::vector<at::DataPtr> more;
  while (colours_.size() + more.size() < count) {
    more.push_back(c10::cuda::CUDACachingAllocator::get()->allocate(bytes_each()));
  }
  for (at::DataPtr& memory : more) colours_.push_back(std::move(memory));
}

std::size_t WorkspaceColours::count() const {
  const std::lock_guard lock(mutex_);
  return colours_.size();
}

std::byte* WorkspaceColours::gemm(std::size_t colour) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::byte*>(colours_.at(colour).get());
}

std::byte* WorkspaceColours::lt(std::size_t colour) const { return gemm(colour) + gemm_bytes(); }

std::vector<ByteSpan> WorkspaceColours::spans() const {
  std::vector<ByteSpan> spans;
  for (std::size_t colour = 0; colour < count(); ++colour) {
    const auto begin = reinterpret_cast<std::uintptr_t>(gemm(colour));
    const auto middle = reinterpret_cast<std::uintptr_t>(lt(colour));
    spans.push_back({.begin = begin, .end = middle});
    spans.push_back({.begin = middle, .end = begin + bytes_each()});
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [memory, bytes] : kept_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.get());
    spans.push_back({.begin = begin, .end = begin + bytes});
  }
  return spans;
}

void WorkspaceColours::keep(at::DataPtr memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  kept_.emplace_back(std::move(memory), bytes);
}

void WorkspaceColours::record_stream(c10::cuda::CUDAStream stream) const {
  const std::lock_guard lock(mutex_);
  for (const at::DataPtr& memory : colours_) c10::cuda::CUDACachingAllocator::recordStream(memory, stream);
  for (const auto& [memory, bytes] : kept_) c10::cuda::CUDACachingAllocator::recordStream(memory, stream);
}

namespace {

// Operators that call cuBLAS. One that is missing uses the colour of the last: what really uses a workspace is seen in
// the arguments of its kernels.
constexpr std::array<std::string_view, 16> kMatrixProducts = {
    "aten::mm",      "aten::addmm",   "aten::addmm_",     "aten::_addmm_activation",
    "aten::bmm",     "aten::baddbmm", "aten::addbmm",     "aten::baddbmm_",
    "aten::addbmm_", "aten::mv",      "aten::addmv",      "aten::addmv_",
    "aten::dot",     "aten::vdot",    "aten::_scaled_mm", "aten::_int_mm",
};

bool is_matrix_product(const trace::OpInfo& op) {
  const std::string_view name = op.schema().name();
  return std::find(kMatrixProducts.begin(), kMatrixProducts.end(), name) != kMatrixProducts.end();
}

bool owns(const at::DataPtr& memory) { return memory.get_context() != nullptr; }

// Lets torch find `memory`, which stays the pool's, wherever its table names `stream`.
// A workspace that torch made anew meanwhile, after the step had cleared its own, serves captured products: it is kept.
void lend(at::cuda::WorkspaceMapWithMutex& table, cudaStream_t stream, std::byte* memory, std::size_t bytes,
          BlasWorkspaces::Map& originals, WorkspaceColours& pool) {
  const std::unique_lock lock(table.mutex);
  for (auto& [key, workspace] : table.map) {
    if (std::get<1>(key) != static_cast<void*>(stream)) continue;
    auto lent = torch_abi::make_workspace({memory, torch_abi::memory_of(workspace).device()}, bytes);
    std::swap(workspace, lent);
    at::DataPtr& made = torch_abi::memory_of(lent);
    if (!originals.try_emplace(key, std::move(lent)).second && owns(made)) {
      pool.keep(std::move(made), torch_abi::bytes_of(lent, bytes));
    }
  }
}

void put_back(at::cuda::WorkspaceMapWithMutex& table, BlasWorkspaces::Map& originals) {
  const std::unique_lock lock(table.mutex);
  for (auto& [key, workspace] : originals) table.map[key] = std::move(workspace);
  originals.clear();
}

}  // namespace

WorkspaceTurns::WorkspaceTurns(WorkspaceColours& pool, std::size_t colours, cudaStream_t stream)
    : pool_(pool), colours_(std::min(colours, pool.count())), stream_(stream) {}

WorkspaceTurns::~WorkspaceTurns() {
  put_back(at::cuda::cublas_handle_stream_to_workspace(), gemm_);
  put_back(at::cuda::cublaslt_handle_stream_to_workspace(), lt_);
}

void WorkspaceTurns::on_op_begin(const trace::OpSpan& op) {
  if (colours_ < 2 || !is_matrix_product(*op.info)) return;
  const std::size_t colour = next_++ % colours_;
  lend(at::cuda::cublas_handle_stream_to_workspace(), stream_, pool_.gemm(colour), torch_abi::gemm_workspace_bytes(),
       gemm_, pool_);
  lend(at::cuda::cublaslt_handle_stream_to_workspace(), stream_, pool_.lt(colour),
       at::cuda::getCUDABlasLtWorkspaceSize(), lt_, pool_);
}

}  // namespace pianola::graph
