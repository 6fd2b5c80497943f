#include <pianola/graph/cuda/planned_memory.hpp>

#include <pianola/core/error.hpp>
#include <pianola/torch_abi/cuda/forwarding_cuda_allocator.hpp>
#include <pianola/trace/allocator_events.hpp>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

PlannedMemory::PlannedMemory(c10::DataPtr memory, c10::cuda::CUDAStream stream, c10::MempoolId_t pool,
                             memory::PlannedSpace space)
    : memory_(std::move(memory)), stream_(stream), pool_(pool), space_(std::move(space)) {}

#if !PIANOLA_TORCH_AT_LEAST(2, 12) || PIANOLA_TORCH_AT_LEAST(2, 15)

namespace {
std::atomic<bool> is_in_place = false;  // the allocator
}  // namespace

/// Before torch's allocator, for the rest of the process: tensors keep a pointer to the allocator that made them. raw_deleter() stays
/// torch's, which compares it with the one of a tensor.
class PlannedMemory::Allocator final : public torch_abi::ForwardingCudaAllocator {
 public:
  explicit Allocator(Base& torchs) : ForwardingCudaAllocator(torchs) {}

  /// Put in at the first call.
  static Allocator& instance() {
    static Allocator& one = put_in();
    return one;
  }

  void add(PlannedMemory* region);
  void remove(PlannedMemory* region) noexcept;
  std::optional<std::vector<ByteSpan>> held_in(const ByteSpan& span);
  std::vector<std::pair<c10::Device, ByteSpan>> gaps();

  void open(std::shared_ptr<PlannedMemory> region);
  void close(PlannedMemory& region) noexcept;
  void begin_operation(PlannedMemory& region, const void* operation) {
    const std::lock_guard lock(mutex_);
    region.space_.begin_operation(operation);
  }

  c10::DataPtr allocate(std::size_t bytes) override;
  void* raw_alloc(std::size_t bytes) override;
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* block) override;
  using ForwardingCudaAllocator::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void* getBaseAllocation(void* block, std::size_t* bytes) override;
  allocator::ShareableHandle shareIpcHandle(void* block) override;

 private:
  struct Planned {
    std::shared_ptr<PlannedMemory> region;
    std::size_t bytes = 0;
    bool other_streams_use_it = false;  // its bytes are not handed out again
  };

  static Allocator& put_in();
  static void free_planned(void* block) { instance().give_back(block); }

  void* take(std::size_t bytes, cudaStream_t stream);
  bool give_back(void* block);
  [[nodiscard]] std::shared_ptr<PlannedMemory> region_of(void* block);

  std::mutex mutex_;
  std::vector<PlannedMemory*> all_;                                 // that live
  std::vector<std::shared_ptr<PlannedMemory>> open_;                // that are handed out of
  std::atomic<std::size_t> regions_open_ = 0, blocks_planned_ = 0;  // read without the lock
  std::unordered_map<void*, Planned> blocks_;
};

PlannedMemory::Allocator& PlannedMemory::Allocator::put_in() {
  auto* const one = new Allocator(*allocator::get());
  allocator::allocator.store(one);
  c10::SetAllocator(c10::kCUDA, one);
  is_in_place = true;
  return *one;
}

void PlannedMemory::Allocator::open(std::shared_ptr<PlannedMemory> region) {
  const std::lock_guard lock(mutex_);
  open_.push_back(std::move(region));
  regions_open_ = open_.size();
}

void PlannedMemory::Allocator::close(PlannedMemory& region) noexcept {
  std::shared_ptr<PlannedMemory> last;  // goes without the lock
  const std::lock_guard lock(mutex_);
  region.is_open_ = false;
  for (auto& one : open_) {
    if (one.get() != &region) continue;
    last = std::exchange(one, std::move(open_.back()));
    open_.pop_back();
    break;
  }
  regions_open_ = open_.size();
}

// nullptr: torch's turn.
void* PlannedMemory::Allocator::take(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0 || regions_open_.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<PlannedMemory>& region : open_) {
    if (region->stream_.stream() != stream) continue;
    const std::optional<std::uint64_t> offset = region->space_.take(bytes);
    if (!offset) return nullptr;
    void* const block = static_cast<char*>(region->memory_.get()) + *offset;
    try {
      blocks_.emplace(block, Planned{.region = region, .bytes = bytes});
    } catch (...) {
      region->space_.give_back(*offset);
      throw;
    }
    blocks_planned_ = blocks_.size();
    trace::AllocatorWatch::tell_of_cuda({.device = region->memory_.device(),
                                         .address = reinterpret_cast<std::uintptr_t>(block),
                                         .bytes = bytes,
                                         .pool = region->pool_,
                                         .stream = reinterpret_cast<std::uintptr_t>(stream)});
    return block;
  }
  return nullptr;
}

// false: it is torch's.
bool PlannedMemory::Allocator::give_back(void* block) {
  if (blocks_planned_.load(std::memory_order_relaxed) == 0) return false;
  Planned planned;  // its region goes without the lock
  const std::lock_guard lock(mutex_);
  auto found = blocks_.extract(block);
  if (found.empty()) return false;
  blocks_planned_ = blocks_.size();
  planned = std::move(found.mapped());
  if (planned.other_streams_use_it) return true;
  const auto* const begin = static_cast<char*>(planned.region->memory_.get());
  planned.region->space_.give_back(static_cast<std::uint64_t>(static_cast<char*>(block) - begin));
  if (!planned.region->is_open_) return true;
  trace::AllocatorWatch::tell_of_cuda({.freed = true,
                                       .device = planned.region->memory_.device(),
                                       .address = reinterpret_cast<std::uintptr_t>(block),
                                       .bytes = planned.bytes,
                                       .pool = planned.region->pool_});
  return true;
}

void PlannedMemory::Allocator::add(PlannedMemory* region) {
  const std::lock_guard lock(mutex_);
  all_.push_back(region);
}

void PlannedMemory::Allocator::remove(PlannedMemory* region) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(all_, region);
}

std::optional<std::vector<ByteSpan>> PlannedMemory::Allocator::held_in(const ByteSpan& span) {
  const std::lock_guard lock(mutex_);
  for (const PlannedMemory* const region : all_) {
    if (reinterpret_cast<std::uintptr_t>(region->memory_.get()) != span.begin) continue;
    std::vector<ByteSpan> held;
    for (const auto& [block, planned] : blocks_) {
      const auto begin = reinterpret_cast<std::uintptr_t>(block);
      if (planned.region.get() == region) held.push_back({.begin = begin, .end = begin + planned.bytes});
    }
    return held;
  }
  return std::nullopt;
}

std::vector<std::pair<c10::Device, ByteSpan>> PlannedMemory::Allocator::gaps() {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<c10::Device, ByteSpan>> gaps;
  for (const PlannedMemory* const region : all_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(region->memory_.get());
    for (const memory::Piece& piece : region->space_.free_pieces()) {
      gaps.emplace_back(region->memory_.device(),
                        ByteSpan{.begin = begin + piece.address, .end = begin + piece.address + piece.bytes});
    }
  }
  return gaps;
}

std::shared_ptr<PlannedMemory> PlannedMemory::Allocator::region_of(void* block) {
  if (blocks_planned_.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  return found == blocks_.end() ? nullptr : found->second.region;
}

c10::DataPtr PlannedMemory::Allocator::allocate(std::size_t bytes) {
  if (regions_open_.load(std::memory_order_relaxed) == 0) [[likely]]
    return to_.allocate(bytes);
  const c10::DeviceIndex device = c10::cuda::current_device();
  void* const block = take(bytes, c10::cuda::getCurrentCUDAStream(device).stream());
  if (block == nullptr) return to_.allocate(bytes);
  return {block, block, &free_planned, c10::Device(c10::kCUDA, device)};
}

void* PlannedMemory::Allocator::raw_alloc(std::size_t bytes) {
  if (regions_open_.load(std::memory_order_relaxed) == 0) [[likely]]
    return to_.raw_alloc(bytes);
  void* const block = take(bytes, c10::cuda::getCurrentCUDAStream().stream());
  return block != nullptr ? block : to_.raw_alloc(bytes);
}

void* PlannedMemory::Allocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  void* const block = take(bytes, stream);
  return block != nullptr ? block : to_.raw_alloc_with_stream(bytes, stream);
}

void PlannedMemory::Allocator::raw_delete(void* block) {
  if (!give_back(block)) to_.raw_delete(block);
}

void PlannedMemory::Allocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (data.get_deleter() != &free_planned) return to_.recordStream(data, stream);
  const std::shared_ptr<PlannedMemory> region = region_of(data.get());
  if (region == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data.get());
    if (found != blocks_.end() && stream != region->stream_) found->second.other_streams_use_it = true;
  }
  to_.recordStream(region->memory_, stream);
}

void* PlannedMemory::Allocator::getBaseAllocation(void* block, std::size_t* bytes) {
  const std::shared_ptr<PlannedMemory> region = region_of(block);
  return to_.getBaseAllocation(region != nullptr ? region->memory_.get() : block, bytes);
}

allocator::ShareableHandle PlannedMemory::Allocator::shareIpcHandle(void* block) {
  const std::shared_ptr<PlannedMemory> region = region_of(block);
  if (region == nullptr) return to_.shareIpcHandle(block);
  allocator::ShareableHandle handle = to_.shareIpcHandle(region->memory_.get());
  handle.offset += static_cast<char*>(block) - static_cast<char*>(region->memory_.get());
  return handle;
}

std::shared_ptr<PlannedMemory> PlannedMemory::begin(c10::cuda::CUDAStream stream, c10::MempoolId_t pool,
                                                    const memory::StepRun& run) {
  if (!trace::AllocatorWatch::sees_cuda()) {
    throw UnsupportedError(
        {.what = "plan_memory is set, and torch's allocator of CUDA memory is another one than its native",
         .fix = "leave plan_memory out, or backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"});
  }
  const memory::StepRun planned = memory::by_main_stream(run).first;
  const memory::OffsetPlan plan = memory::plan_offsets(planned.blocks);
  if (plan.bytes == 0) return nullptr;
  Allocator& planning = Allocator::instance();
  c10::DataPtr memory;
  try {
    memory = planning.allocate(plan.bytes);  // goes to the pool, as all that the stream asks for
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;  // blocks are smaller: the capture may find room for them
  }
  auto region = std::make_shared<PlannedMemory>(std::move(memory), stream, pool, memory::PlannedSpace(planned, plan));
  planning.add(region.get());
  planning.open(region);
  return region;
}

PlannedMemory::~PlannedMemory() { Allocator::instance().remove(this); }

void PlannedMemory::end() noexcept { Allocator::instance().close(*this); }

void PlannedMemory::on_op_begin(const trace::OpSpan& op) { Allocator::instance().begin_operation(*this, op.info); }

// Where nothing was planned, the allocator need not be put in for it.
std::optional<std::vector<ByteSpan>> PlannedMemory::held_in(const ByteSpan& span) {
  return is_in_place ? Allocator::instance().held_in(span) : std::nullopt;
}

std::vector<std::pair<c10::Device, ByteSpan>> PlannedMemory::gaps() {
  return is_in_place ? Allocator::instance().gaps() : std::vector<std::pair<c10::Device, ByteSpan>>();
}

void PlannedMemory::record_stream(c10::cuda::CUDAStream stream) { allocator::recordStream(memory_, stream); }

#else

std::shared_ptr<PlannedMemory> PlannedMemory::begin(c10::cuda::CUDAStream /*stream*/, c10::MempoolId_t /*pool*/,
                                                    const memory::StepRun& /*run*/) {
  throw UnsupportedError({.what = "plan_memory is set, which this version of torch is not known to bear",
                          .fix = "leave plan_memory out, or use torch 2.11 or 2.15"});
}

PlannedMemory::~PlannedMemory() = default;
void PlannedMemory::end() noexcept {}
void PlannedMemory::on_op_begin(const trace::OpSpan& /*op*/) {}
std::optional<std::vector<ByteSpan>> PlannedMemory::held_in(const ByteSpan& /*span*/) { return std::nullopt; }
std::vector<std::pair<c10::Device, ByteSpan>> PlannedMemory::gaps() { return {}; }
void PlannedMemory::record_stream(c10::cuda::CUDAStream /*stream*/) {}

#endif

}  // namespace pianola::graph
