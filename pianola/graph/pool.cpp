#include <pianola/graph/pool.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/fork.hpp>
#include <pianola/graph/pool_state.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/cuda_pool.hpp>

#include <ATen/cuda/CUDAGraph.h>
#endif

#include <c10/util/Exception.h>

#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace pianola {

namespace {

#if PIANOLA_WITH_CUDA
// Deletes, but not in a forked child: there the memory is the parent's, and so is the driver.
template <typename T>
auto unless_forked() {
  return [process = graph::ProcessMark()](const T* owned) {
    if (process.is_this_process()) delete owned;
  };
}
#endif

// Pools by name, so that a name that went through Python finds its pool.
class KnownPools {
 public:
  static KnownPools& instance() {
    static KnownPools& known = *new KnownPools;  // never destroyed: a static Graph may end after it
    return known;
  }

  std::shared_ptr<PoolState> find_or_make(c10::Device device, PoolId id) {
    const std::lock_guard lock(mutex_);
    drop_ended();
    auto& entry = pools_[{device.str(), id}];
    std::shared_ptr<PoolState> pool = entry.lock();
    if (pool == nullptr) entry = pool = make(device, id);
    return pool;
  }

  std::shared_ptr<PoolState> make_own(c10::Device device, const std::shared_ptr<PoolFamily>& family) {
    const std::lock_guard lock(mutex_);
    drop_ended();
    std::shared_ptr<PoolState> pool = make(device, std::nullopt, family);
    pools_[{device.str(), pool->id()}] = pool;
    return pool;
  }

 private:
  void drop_ended() {
    std::erase_if(pools_, [](const auto& entry) { return entry.second.expired(); });
  }

  static std::shared_ptr<PoolState> make([[maybe_unused]] c10::Device device, std::optional<PoolId> id,
                                         [[maybe_unused]] const std::shared_ptr<PoolFamily>& family = nullptr) {
#if PIANOLA_WITH_CUDA
    const auto end = unless_forked<PoolState>();
    if (device.is_cuda()) {
      if (id) return graph::CudaPool::named(device, *id, end);
      return graph::CudaPool::with_own_name(device, std::static_pointer_cast<graph::CudaPoolFamily>(family), end);
    }
#endif
    return std::make_shared<TapePool>(id ? *id : GraphPool::new_id());
  }

  std::mutex mutex_;
  std::map<std::pair<std::string, PoolId>, std::weak_ptr<PoolState>> pools_;
};

}  // namespace

PoolState::WarmUp::WarmUp(PoolState& pool) : pool_(pool) {
  pool_.warms_up_ = true;
  try {
    pool_.begin_warm_up();
  } catch (...) {
    pool_.warms_up_ = false;
    throw;
  }
}

PoolState::WarmUp::~WarmUp() {
  try {
    pool_.end_warm_up();
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: replays of a pool could not be ordered behind a warm-up: ", error.what());
  }
  pool_.warms_up_ = false;
}

void PoolState::refuse_replay() {
  throw UsageError(
      {.what = "replay() was called while another thread warms up a capture into the graph's pool, whose graphs share "
               "memory; nothing was launched",
       .fix = "replay when that capture has ended, or capture into a pool of its own"});
}

std::shared_ptr<PoolState> pool_state(c10::Device device, PoolId id) {
  return KnownPools::instance().find_or_make(graph::usable_device(device), id);
}

std::shared_ptr<PoolState> make_pool_state(c10::Device device, const std::shared_ptr<PoolFamily>& family) {
  return KnownPools::instance().make_own(graph::usable_device(device), family);
}

std::shared_ptr<PoolFamily> make_pool_family(c10::Device device) {
#if PIANOLA_WITH_CUDA
  if (graph::usable_device(device).is_cuda()) {
    return {new graph::CudaPoolFamily(), unless_forked<graph::CudaPoolFamily>()};
  }
#endif
  (void)graph::usable_device(device);
  return nullptr;
}

PoolId GraphPool::new_id() {
#if PIANOLA_WITH_CUDA
  return at::cuda::graph_pool_handle();
#else
  static std::atomic<unsigned long long> last = 0;
  return {0, ++last};
#endif
}

GraphPool::GraphPool(c10::Device device) : state_(make_pool_state(device)) {}
GraphPool::GraphPool(c10::Device device, PoolId id) : state_(pool_state(device, id)) {}
GraphPool::GraphPool(GraphPool&&) noexcept = default;
GraphPool& GraphPool::operator=(GraphPool&&) noexcept = default;
GraphPool::~GraphPool() = default;

struct GraphPoolFamily::Impl {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<PoolFamily>> by_device;
};

GraphPoolFamily::GraphPoolFamily() : impl_(std::make_shared<Impl>()) {}
GraphPoolFamily::~GraphPoolFamily() = default;

GraphPoolRef GraphPoolFamily::make_pool(c10::Device device) const {
  device = graph::usable_device(device);
  const std::lock_guard lock(impl_->mutex);
  auto known = impl_->by_device.find(device.str());
  if (known == impl_->by_device.end()) known = impl_->by_device.emplace(device.str(), make_pool_family(device)).first;
  return GraphPoolRef(make_pool_state(device, known->second));
}

c10::Device GraphPool::device() const noexcept { return state_->device(); }
std::size_t GraphPool::bytes() const { return state_->bytes(); }
PoolId GraphPool::id() const noexcept { return state_->tell_id(); }

GraphPoolRef::GraphPoolRef() noexcept = default;
GraphPoolRef::GraphPoolRef(const GraphPool& pool) noexcept : state_(pool.state_) {}
GraphPoolRef::GraphPoolRef(std::shared_ptr<PoolState> state) noexcept : state_(std::move(state)) {}
GraphPoolRef::GraphPoolRef(const GraphPoolRef&) noexcept = default;
GraphPoolRef::GraphPoolRef(GraphPoolRef&&) noexcept = default;
GraphPoolRef& GraphPoolRef::operator=(const GraphPoolRef&) noexcept = default;
GraphPoolRef& GraphPoolRef::operator=(GraphPoolRef&&) noexcept = default;
GraphPoolRef::~GraphPoolRef() = default;

bool GraphPoolRef::empty() const noexcept { return state_ == nullptr; }
PoolId GraphPoolRef::id() const {
  if (empty()) throw UsageError({.what = "id() was called on an empty GraphPoolRef, which names no pool"});
  return state_->tell_id();
}

}  // namespace pianola
