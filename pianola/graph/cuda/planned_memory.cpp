#include <pianola/graph/cuda/planned_memory.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/aliased_memory.hpp>
#include <pianola/cuda/capture_mode.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/torch_abi/cuda/forwarding_cuda_allocator.hpp>
#include <pianola/trace/allocator_events.hpp>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

struct PlannedMemory::Room {
  std::shared_ptr<PlannedRegion> region = {};
  memory::OffsetPlan plan = {};
  std::shared_ptr<PlannedRegion> kept = {};  // then `apart` is the plan
  memory::ApartPlan apart = {};
  std::vector<ByteSpan> used = {};
  bool is_side_by_side = false;

  [[nodiscard]] memory::PlannedSpace lay(const memory::StepRun& run) const {
    if (kept == nullptr) return {run, plan, region->space()};
    return {run, apart, region->space(), kept->space()};
  }
  static std::uint64_t next_number() {
    static std::atomic<std::uint64_t> last = 0;
    return ++last;
  }
};

PlannedMemory::PlannedMemory(Room room, c10::cuda::CUDAStream stream, c10::MempoolId_t pool, const memory::StepRun& run)
    : number_(Room::next_number()),
      bound_(room.plan.bound),
      region_(room.region),
      kept_(room.kept),
      used_(std::move(room.used)),
      stream_(stream),
      pool_(pool),
      space_(room.lay(run)) {
  if (room.is_side_by_side) next_apart_ = 0;
}

std::optional<memory::PlannedSpace::Place> PlannedMemory::take(std::uint64_t bytes) {
  if (!next_apart_) return space_.take(bytes);
  const memory::Piece piece = {.address = *next_apart_, .bytes = memory::in_whole_units(bytes)};
  if (!region_->space().take(piece)) return std::nullopt;  // the addresses are used up
  *next_apart_ += piece.bytes;
  return memory::PlannedSpace::Place{.offset = piece.address};
}

void PlannedMemory::settle() {
  const std::vector<ByteSpan> left = held();
  region_->note_left(number_, left);
  std::size_t bytes = 0;
  for (const ByteSpan& span : left) {
    if (std::ranges::any_of(used_, [&](const ByteSpan& one) { return one.overlaps(span); })) bytes += span.size();
  }
  used_ = {};
  if (bytes == 0) return;
  throw HeldScratch(
      {.what = fmt::format("the step, now that it is captured, holds {} bytes that it had let go of in the run before: "
                           "they are scratch of earlier graphs of the pool, whose replays overwrite them",
                           bytes),
       .fix = "let the step hold the same tensors in each run, whether a capture is open or not"});
}

void PlannedMemory::keep_whole(std::span<const ByteSpan> allocated) {
  if (kept_ != nullptr) {
    throw HeldScratch({.what = "each replay of the step would call operations by hand, where other graphs of the pool "
                               "may be replayed, which overwrite its scratch",
                       .fix = "capture it into a pool of its own"});
  }
  region_->keep_whole(number_, allocated);
  is_kept_whole_ = true;
}

#if !PIANOLA_TORCH_AT_LEAST(2, 12) || PIANOLA_TORCH_AT_LEAST(2, 15)

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

  void open(std::shared_ptr<PlannedMemory> recording);
  void close(PlannedMemory& recording) noexcept;
  void begin_operation(PlannedMemory& recording, const void* operation) {
    const std::lock_guard lock(mutex_);
    if (!recording.next_apart_) recording.space_.begin_operation(operation);
  }
  /// Of what a recording was handed out, but for results that lie apart.
  [[nodiscard]] std::vector<ByteSpan> held_of(const PlannedMemory& recording);

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
    std::uint64_t recording;
    std::shared_ptr<PlannedRegion> region;
    c10::cuda::CUDAStream stream;
    c10::MempoolId_t pool;
    ByteSpan span;
    bool other_streams_use_it = false;  // its bytes are not handed out again: by its recording, or, after that, at all
  };

  static Allocator& put_in();
  static void free_planned(void* block) { instance().give_back(block); }

  void* take(std::size_t bytes, cudaStream_t stream);
  bool give_back(void* block);
  // What torch's allocator gave for a block: its segments, or all of its region where they are several; nullopt: it is torch's.
  struct Around {
    std::shared_ptr<PlannedRegion> region;
    std::vector<const c10::DataPtr*> memory;  // they live as long as the region
    std::uintptr_t begin = 0;                 // of the first
  };
  [[nodiscard]] std::optional<Around> around(void* block);
  [[nodiscard]] bool is_recorded(const PlannedRegion& region) const;
  bool keep_for_now(const Planned& planned);

  std::mutex& mutex_ = PlannedRegion::mutex();
  std::vector<std::shared_ptr<PlannedMemory>> open_;                   // that are handed out of
  std::atomic<std::size_t> recordings_open_ = 0, blocks_planned_ = 0;  // read without the lock
  std::unordered_map<void*, Planned> blocks_;
};

PlannedMemory::Allocator& PlannedMemory::Allocator::put_in() {
  auto* const one = new Allocator(*allocator::get());
  allocator::allocator.store(one);
  c10::SetAllocator(c10::kCUDA, one);
  return *one;
}

void PlannedMemory::Allocator::open(std::shared_ptr<PlannedMemory> recording) {
  const std::lock_guard lock(mutex_);
  open_.push_back(std::move(recording));
  recordings_open_ = open_.size();
}

void PlannedMemory::Allocator::close(PlannedMemory& recording) noexcept {
  std::shared_ptr<PlannedMemory> last;  // goes without the lock
  const std::lock_guard lock(mutex_);
  for (auto& one : open_) {
    if (one.get() != &recording) continue;
    last = std::exchange(one, std::move(open_.back()));
    open_.pop_back();
    break;
  }
  recordings_open_ = open_.size();
  for (const auto& [region, offset] : recording.late_) region->space().give_back(offset);
  recording.late_.clear();
}

// What other streams do with it inside of the graph is over when another graph of the pool runs.
bool PlannedMemory::Allocator::keep_for_now(const Planned& planned) {
  for (const std::shared_ptr<PlannedMemory>& recording : open_) {
    if (recording->number_ != planned.recording) continue;
    recording->late_.emplace_back(planned.region, planned.span.begin - planned.region->begin());
  }
  return true;
}

bool PlannedMemory::Allocator::is_recorded(const PlannedRegion& region) const {
  return std::ranges::any_of(open_, [&](const auto& recording) {
    return recording->region_.get() == &region || recording->kept_.get() == &region;
  });
}

std::vector<ByteSpan> PlannedMemory::Allocator::held_of(const PlannedMemory& recording) {
  const std::lock_guard lock(mutex_);
  std::vector<ByteSpan> held;
  for (const auto& [block, planned] : blocks_) {
    if (planned.recording == recording.number_ && planned.region == recording.region_) held.push_back(planned.span);
  }
  return held;
}

// nullptr: torch's turn.
void* PlannedMemory::Allocator::take(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0 || recordings_open_.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<PlannedMemory>& recording : open_) {
    if (recording->stream_.stream() != stream) continue;
    const std::optional<memory::PlannedSpace::Place> place = recording->take(bytes);
    if (!place) return nullptr;
    const std::shared_ptr<PlannedRegion>& region = place->is_kept ? recording->kept_ : recording->region_;
    const std::uintptr_t begin = region->begin() + place->offset;
    const ByteSpan span = {.begin = begin, .end = begin + bytes};
    void* const block = reinterpret_cast<void*>(span.begin);
    try {
      blocks_.emplace(block, Planned{.recording = recording->number_,
                                     .region = region,
                                     .stream = recording->stream_,
                                     .pool = recording->pool_,
                                     .span = span});
    } catch (...) {
      region->space().give_back(place->offset);
      throw;
    }
    blocks_planned_ = blocks_.size();
    trace::AllocatorWatch::tell_of_cuda({.device = region->device(),
                                         .address = span.begin,
                                         .bytes = bytes,
                                         .pool = recording->pool_,
                                         .stream = reinterpret_cast<std::uintptr_t>(stream)});
    return block;
  }
  return nullptr;
}

// false: it is torch's.
bool PlannedMemory::Allocator::give_back(void* block) {
  if (blocks_planned_.load(std::memory_order_relaxed) == 0) return false;
  std::optional<Planned> planned;  // its region goes without the lock
  const std::lock_guard lock(mutex_);
  auto found = blocks_.extract(block);
  if (found.empty()) return false;
  blocks_planned_ = blocks_.size();
  planned = std::move(found.mapped());
  if (planned->other_streams_use_it) return keep_for_now(*planned);
  PlannedRegion& region = *planned->region;
  region.space().give_back(planned->span.begin - region.begin());
  if (!is_recorded(region)) return true;
  trace::AllocatorWatch::tell_of_cuda({.freed = true,
                                       .device = region.device(),
                                       .address = planned->span.begin,
                                       .bytes = planned->span.size(),
                                       .pool = planned->pool});
  return true;
}

std::optional<PlannedMemory::Allocator::Around> PlannedMemory::Allocator::around(void* block) {
  if (blocks_planned_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return std::nullopt;
  const PlannedRegion& region = *found->second.region;
  return Around{
      .region = found->second.region, .memory = region.memory_of(found->second.span), .begin = region.begin()};
}

c10::DataPtr PlannedMemory::Allocator::allocate(std::size_t bytes) {
  if (recordings_open_.load(std::memory_order_relaxed) == 0) [[likely]]
    return to_.allocate(bytes);
  const c10::DeviceIndex device = c10::cuda::current_device();
  void* const block = take(bytes, c10::cuda::getCurrentCUDAStream(device).stream());
  if (block == nullptr) return to_.allocate(bytes);
  return {block, block, &free_planned, c10::Device(c10::kCUDA, device)};
}

void* PlannedMemory::Allocator::raw_alloc(std::size_t bytes) {
  if (recordings_open_.load(std::memory_order_relaxed) == 0) [[likely]]
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
  const std::optional<Around> around_it = around(data.get());
  if (!around_it) return;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data.get());
    if (found != blocks_.end() && stream != found->second.stream) found->second.other_streams_use_it = true;
  }
  for (const c10::DataPtr* const memory : around_it->memory) to_.recordStream(*memory, stream);
}

// A block that reaches over segments lies in no block of torch's: it is the region's.
void* PlannedMemory::Allocator::getBaseAllocation(void* block, std::size_t* bytes) {
  const std::optional<Around> around_it = around(block);
  if (!around_it) return to_.getBaseAllocation(block, bytes);
  if (around_it->memory.size() == 1) return to_.getBaseAllocation(around_it->memory.front()->get(), bytes);
  if (bytes != nullptr) *bytes = around_it->region->bytes();
  return reinterpret_cast<void*>(around_it->begin);
}

allocator::ShareableHandle PlannedMemory::Allocator::shareIpcHandle(void* block) {
  const std::optional<Around> around_it = around(block);
  if (!around_it) return to_.shareIpcHandle(block);
  void* const base = around_it->memory.front()->get();
  allocator::ShareableHandle handle = to_.shareIpcHandle(base);
  handle.offset += static_cast<char*>(block) - static_cast<char*>(base);
  return handle;
}

// In the pool's regions, around what blocks of its graphs have; or in one of the recording's own.
std::optional<PlannedMemory::Room> PlannedMemory::make_room(const memory::StepRun& run, PlanRoom in) {
  if (run.blocks.empty()) return std::nullopt;
  Room room;
  if (in.kept != nullptr) {
    room.apart = memory::plan_apart(run.blocks, in.taken(), run.interference);
    if (in.shared->grow_to(room.apart.scratch_bytes) && in.kept->grow_to(room.apart.kept_bytes)) {
      room.region = std::move(in.shared);
      room.kept = std::move(in.kept);
      room.used = std::move(in.used);
      return room;
    }
  } else if (in.shared != nullptr) {
    room.plan = memory::plan_offsets(run.blocks, in.taken().of_scratch, run.interference);
    if (in.shared->grow_to(room.plan.bytes)) {
      room.region = std::move(in.shared);
      return room;
    }
  }
  room.plan = memory::plan_offsets(run.blocks, run.interference);
  c10::DataPtr memory =
      allocator::get()->allocate(room.plan.bytes);  // goes to the pool, as all that the stream asks for
  room.region = std::make_shared<PlannedRegion>(std::move(memory), room.plan.bytes);
  return room;
}

// At addresses without memory, which the last block gives back, whatever this thread captures then.
std::optional<PlannedMemory::Room> PlannedMemory::make_room_apart(std::uint64_t bytes, c10::Device device) {
  const RelaxedCaptureMode relaxed(Driver::get());
  auto addresses = std::make_unique<AliasedMemory>(device.index(), bytes);
  auto* const memory = reinterpret_cast<void*>(addresses->address());
  const auto give_back = [](void* context) {
    const RelaxedCaptureMode relaxed_then(Driver::get());
    delete static_cast<AliasedMemory*>(context);
  };
  Room room{.is_side_by_side = true};
  room.region = std::make_shared<PlannedRegion>(c10::DataPtr(memory, addresses.release(), give_back, device), bytes);
  return room;
}

std::shared_ptr<PlannedMemory> PlannedMemory::begin(c10::cuda::CUDAStream stream, c10::MempoolId_t pool,
                                                    const memory::StepRun& run, PlanRoom in) {
  if (!trace::AllocatorWatch::sees_cuda()) {
    throw UnsupportedError(
        {.what = "plan_memory is set, and torch's allocator of CUDA memory is another one than its native",
         .fix = "leave plan_memory out, or backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"});
  }
  const memory::StepRun planned =
      memory::by_main_stream(run, /*captured=*/reinterpret_cast<std::uintptr_t>(stream.stream())).first;
  std::optional<Room> room;
  try {
    room = make_room(planned, std::move(in));
  } catch (const c10::OutOfMemoryError&) {  // blocks are smaller: the capture may find room for them
  }
  return open(std::move(room), stream, pool, planned);
}

std::shared_ptr<PlannedMemory> PlannedMemory::begin_apart(c10::cuda::CUDAStream stream, c10::MempoolId_t pool,
                                                          std::uint64_t bytes) {
  std::optional<Room> room;
  try {
    room = make_room_apart(bytes, stream.device());
  } catch (const OutOfMemoryError&) {
  } catch (const DeviceError&) {  // the driver has no such addresses
  }
  return open(std::move(room), stream, pool, {});
}

std::shared_ptr<PlannedMemory> PlannedMemory::open(std::optional<Room> room, c10::cuda::CUDAStream stream,
                                                   c10::MempoolId_t pool, const memory::StepRun& run) {
  if (!room) return nullptr;
  auto recording = std::make_shared<PlannedMemory>(*std::move(room), stream, pool, run);
  Allocator::instance().open(recording);
  return recording;
}

std::uintptr_t PlannedMemory::address() const {
  const std::lock_guard lock(PlannedRegion::mutex());
  return region_->begin();
}

void PlannedMemory::end() noexcept { Allocator::instance().close(*this); }

std::vector<ByteSpan> PlannedMemory::held() const { return Allocator::instance().held_of(*this); }

void PlannedMemory::on_op_begin(const trace::OpSpan& op) { Allocator::instance().begin_operation(*this, op.info); }

#else

std::shared_ptr<PlannedMemory> PlannedMemory::begin(c10::cuda::CUDAStream /*stream*/, c10::MempoolId_t /*pool*/,
                                                    const memory::StepRun& /*run*/, PlanRoom /*in*/) {
  throw UnsupportedError({.what = "plan_memory is set, which this version of torch is not known to bear",
                          .fix = "leave plan_memory out, or use torch 2.11 or 2.15"});
}

std::shared_ptr<PlannedMemory> PlannedMemory::begin_apart(c10::cuda::CUDAStream /*stream*/, c10::MempoolId_t /*pool*/,
                                                          std::uint64_t /*bytes*/) {
  return nullptr;
}

void PlannedMemory::end() noexcept {}
std::vector<ByteSpan> PlannedMemory::held() const { return {}; }
std::uintptr_t PlannedMemory::address() const { return 0; }
void PlannedMemory::on_op_begin(const trace::OpSpan& /*op*/) {}

#endif

}  // namespace pianola::graph
