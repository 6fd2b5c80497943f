#include <pianola/graph/pool.hpp>

#include <pianola/graph/device_check.hpp>
#include <pianola/graph/pool_state.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/cuda_pool.hpp>
#endif

namespace pianola {

std::shared_ptr<PoolState> make_pool_state(c10::Device device) {
  device = graph::usable_device(device);
#if PIANOLA_WITH_CUDA
  if (device.is_cuda()) return std::make_shared<graph::CudaPool>(device);
#endif
  return std::make_shared<TapePool>();
}

GraphPool::GraphPool(c10::Device device) : state_(make_pool_state(device)) {}
GraphPool::GraphPool(GraphPool&&) noexcept = default;
GraphPool& GraphPool::operator=(GraphPool&&) noexcept = default;
GraphPool::~GraphPool() = default;

c10::Device GraphPool::device() const noexcept { return state_->device(); }
std::size_t GraphPool::bytes() const { return state_->bytes(); }

GraphPoolRef::GraphPoolRef() noexcept = default;
GraphPoolRef::GraphPoolRef(const GraphPool& pool) noexcept : state_(pool.state_) {}
GraphPoolRef::GraphPoolRef(std::shared_ptr<PoolState> state) noexcept : state_(std::move(state)) {}
GraphPoolRef::GraphPoolRef(const GraphPoolRef&) noexcept = default;
GraphPoolRef::GraphPoolRef(GraphPoolRef&&) noexcept = default;
GraphPoolRef& GraphPoolRef::operator=(const GraphPoolRef&) noexcept = default;
GraphPoolRef& GraphPoolRef::operator=(GraphPoolRef&&) noexcept = default;
GraphPoolRef::~GraphPoolRef() = default;

bool GraphPoolRef::empty() const noexcept { return state_ == nullptr; }

}  // namespace pianola
