#include <pianola/graph/pool.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/moved_from.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/process_mark.hpp>
#include <pianola/graph/tape/tape.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/cuda/thread_streams.hpp>

#include <ATen/cuda/CUDAGraph.h>
#endif

#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola {

namespace {

#if PIANOLA_WITH_CUDA
// Deletes, but not in a forked child, where the memory is the parent's, and so is the driver, nor when the process ends.
template <typename T>
auto deleter(c10::Device device) {
  graph::prepare_to_end_on_this_thread(device.index());
  return [process = graph::ProcessMark()](const T* owned) { graph::end_made_with(process, owned); };
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

  std::shared_ptr<PoolState> make_own(c10::Device device, const std::shared_ptr<PoolFamily>& family,
                                      PoolTraits traits) {
    const std::lock_guard lock(mutex_);
    drop_ended();
    std::shared_ptr<PoolState> pool = make(device, std::nullopt, family, traits);
    pools_[{device.str(), pool->id()}] = pool;
    return pool;
  }

  std::vector<std::shared_ptr<PoolState>> all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<PoolState>> pools;
    for (const auto& [name, pool] : pools_) {
      if (std::shared_ptr<PoolState> alive = pool.lock()) pools.push_back(std::move(alive));
    }
    return pools;
  }

 private:
  void drop_ended() {
    std::erase_if(pools_, [](const auto& entry) { return entry.second.expired(); });
  }

  static std::shared_ptr<PoolState> make([[maybe_unused]] c10::Device device, std::optional<PoolId> id,
                                         [[maybe_unused]] const std::shared_ptr<PoolFamily>& family = nullptr,
                                         PoolTraits traits = {}) {
#if PIANOLA_WITH_CUDA
    if (device.is_cuda()) {
      const auto end = deleter<PoolState>(device);
      if (id) return graph::CudaPool::named(device, *id, end);
      return graph::CudaPool::with_own_name(device, std::static_pointer_cast<graph::CudaPoolFamily>(family), traits,
                                            end);
    }
#endif
    return std::make_shared<TapePool>(id ? *id : GraphPool::new_id(), traits);
  }

  std::mutex mutex_;
  std::map<std::pair<std::string, PoolId>, std::weak_ptr<PoolState>> pools_;
};

}  // namespace

PoolState::WarmUp::WarmUp(PoolState& pool) : pool_(pool) {
  pool_.is_ = Is::warmed_up;
  try {
    pool_.begin_warm_up();
  } catch (...) {
    pool_.is_ = Is::ready;
    throw;
  }
}

PoolState::WarmUp::~WarmUp() {
  try {
    pool_.end_warm_up();
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: replays of a pool could not be ordered behind a warm-up: ", error.what());
  }
  pool_.is_ = Is::ready;
}

PoolState::InUse::InUse(PoolState& pool) : pool_(pool) {
  ++pool.replays_;
  if (pool.is_.load() == Is::ready) [[likely]]
    return;
  --pool.replays_;
  pool.refuse_replay();
}

PoolState::InPieces::InPieces(PoolState& pool) {
  if (!pool.traits_.shares_region || pool.device_.is_cpu()) return;
  const std::thread::id me = std::this_thread::get_id();
  std::thread::id whose;
  while (!pool.in_pieces_.compare_exchange_strong(whose, me)) {
    if (whose == me) return;
    pool.check_pieces();
    whose = {};  // it has ended meanwhile
  }
  pool_ = &pool;
}

PoolState::InPieces::~InPieces() {
  if (pool_ != nullptr) pool_->in_pieces_ = std::thread::id();
}

void PoolState::check_pieces() const {
  const std::thread::id whose = in_pieces_;
  if (whose == std::thread::id() || whose == std::this_thread::get_id()) return;
  throw UsageError({.what = "replay() was called while another thread is between two parts of a replay in the graph's "
                            "pool, whose graphs share memory; nothing was launched",
                    .fix = "replay when that one has ended, or capture into a pool of its own"});
}

void PoolState::refuse_replay() const {
  if (is_asleep()) {
    throw UsageError({.what = "replay() was called on a graph whose pool is asleep; nothing was launched",
                      .fix = "call the pool's resume(), or resume_all(), before"});
  }
  throw UsageError(
      {.what = "replay() was called while another thread warms up a capture into the graph's pool, whose graphs share "
               "memory; nothing was launched",
       .fix = "replay when that capture has ended, or capture into a pool of its own"});
}

void PoolState::check_awake(const char* call) const {
  if (!is_asleep()) return;
  throw UsageError({.what = fmt::format("{} was given a pool that is asleep", call),
                    .fix = "call its resume(), or resume_all(), before; or use another pool"});
}

void PoolState::check_not_allocated_into(const char* call) const {
  if (!is_allocated_into_) return;
  const char* const where = captures_.is_ours() ? "inside of" : "while another thread is inside of";
  throw UsageError({.what = fmt::format("{} was called on a graph pool {} its allocations()", call, where),
                    .fix = "call it behind the end of GraphPool::Allocations, in Python of `with pool.allocations()`"});
}

void TapePool::add(const graph::Tape& tape, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  tapes_.emplace(&tape, bytes);
  graphs().set(&tape, {});
}

void TapePool::remove(const graph::Tape& tape) noexcept {
  const std::lock_guard lock(mutex_);
  tapes_.erase(&tape);
  graphs().remove(&tape);
}

std::size_t TapePool::bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t all = 0;
  for (const auto& [tape, bytes] : tapes_) all += bytes;
  return all;
}

std::vector<const graph::Tape*> TapePool::tapes() const {
  std::vector<const graph::Tape*> tapes;
  for (const auto& [tape, bytes] : tapes_) tapes.push_back(tape);
  return tapes;
}

std::size_t TapePool::let_memory_go() {
  const std::lock_guard lock(mutex_);
  return graph::drop_scratch(tapes());
}

void TapePool::account(PoolMemory& memory) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [tape, bytes] : tapes_) memory.bytes += bytes;
  memory.scratch = std::min(graph::scratch_bytes(tapes()), memory.bytes);
  memory.held = memory.bytes - memory.scratch;
}

PoolMemory PoolState::memory() const {
  PoolMemory memory{
      .id = id_, .graphs = graphs_.count(), .executables = graphs_.executables(), .is_asleep = is_asleep()};
  memory.workspaces = total_bytes(workspace_spans());
  account(memory);
  return memory;
}

std::vector<std::shared_ptr<PoolState>> living_pools() { return KnownPools::instance().all(); }

std::shared_ptr<PoolState> pool_state(c10::Device device, PoolId id) {
  return KnownPools::instance().find_or_make(graph::usable_device(device), id);
}

std::shared_ptr<PoolState> make_pool_state(c10::Device device, const std::shared_ptr<PoolFamily>& family,
                                           PoolTraits traits) {
  return KnownPools::instance().make_own(graph::usable_device(device), family, traits);
}

std::shared_ptr<PoolFamily> make_pool_family(c10::Device device) {
#if PIANOLA_WITH_CUDA
  if (const c10::Device usable = graph::usable_device(device); usable.is_cuda()) {
    const auto end = deleter<graph::CudaPoolFamily>(usable);
    return {new graph::CudaPoolFamily(), end};
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
GraphPool::GraphPool(c10::Device device, const Options& options)
    : state_(make_pool_state(device, nullptr,
                             {.can_sleep = options.can_sleep,
                              .shares_region = options.plan_memory,
                              .plans_all = options.plan_memory,
                              .shares_executables = options.share_executables})) {}
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

struct GraphPool::Allocations::Impl {
  explicit Impl(PoolState& into) : pool(into), alone(into.captures(), "allocations()", "a graph pool") {
    pool.note_allocations(true);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { pool.note_allocations(false); }

  PoolState& pool;
  OneCall::Scope alone;
  std::shared_ptr<void> into_pool;
};

GraphPool::Allocations::Allocations(GraphPool& pool) {
  if (graph::capture_is_open()) {
    throw UsageError({.what = "allocations() was called while a capture is open on this thread",
                      .fix = "call it before: what a step allocates lies in its graph's pool by itself"});
  }
  pool.state_->check_not_allocated_into("allocations()");
  impl_ = std::make_unique<Impl>(*pool.state_);
  pool.state_->check_awake("allocations()");
  impl_->into_pool = pool.state_->allocate_into();
  ++graph::allocations_into_pools();
}

GraphPool::Allocations::~Allocations() { --graph::allocations_into_pools(); }

c10::Device GraphPool::device() const noexcept { return state_->device(); }
std::size_t GraphPool::bytes() const { return unless_moved_from(state_, "a pool").bytes(); }
PoolId GraphPool::id() const noexcept { return state_->tell_id(); }
std::size_t GraphPool::suspend(const SuspendOptions& options) {
  return unless_moved_from(state_, "a pool").suspend(options);
}
void GraphPool::resume() { unless_moved_from(state_, "a pool").resume(); }
bool GraphPool::is_asleep() const noexcept { return state_->is_asleep(); }

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
