#include <pianola/graph/cuda/pool_clearance.hpp>

#include <pianola/graph/cuda/pool_reservation.hpp>

#include <utility>

namespace pianola::graph {

memory::TakenApart PlanRoom::taken() const {
  if (kept == nullptr) return {.of_scratch = shared->taken(), .of_kept = {}};
  return {.of_scratch = shared->taken({.and_left = true}), .of_kept = kept->taken({.and_used = used})};
}

void PoolClearance::share_regions() {
  region_ = std::make_shared<PlannedRegion>(device_);
  kept_region_ = std::make_shared<PlannedRegion>(device_);
  apart_ = std::make_shared<std::atomic<int>>(0);
}

std::shared_ptr<void> PoolClearance::reserve_used_memory() {
  const std::vector<ByteSpan> used = this->used();
  struct All {
    PoolReservation of_torch;
    std::shared_ptr<void> of_plans, of_results;
  };
  return std::shared_ptr<All>(
      new All{.of_torch = PoolReservation(device_.index(), pool_, used),
              .of_plans = region_ ? PlannedRegion::reserve(region_, used) : nullptr,
              .of_results = kept_region_ ? PlannedRegion::reserve(kept_region_, used) : nullptr});
}

std::shared_ptr<void> PoolClearance::reserve_for_results() {
  if (region_ == nullptr) return reserve_used_memory();
  class Apart {
   public:
    Apart(c10::DeviceIndex device, PoolId pool, const std::vector<ByteSpan>& used,
          std::shared_ptr<std::atomic<int>> count)
        : of_torch_(device, pool, used), count_(std::move(count)) {
      ++*count_;
    }
    Apart(const Apart&) = delete;
    Apart& operator=(const Apart&) = delete;
    ~Apart() { --*count_; }

   private:
    PoolReservation of_torch_;
    std::shared_ptr<std::atomic<int>> count_;
  };
  return std::make_shared<Apart>(device_.index(), pool_, used(), apart_);
}

// Where no graph has used any memory yet, results need not keep clear of it.
PlanRoom PoolClearance::room_for_plan() const {
  if (region_ == nullptr) return {};
  if (apart_->load() == 0) return {.shared = region_};
  std::vector<ByteSpan> used = this->used();
  if (used.empty()) return {.shared = region_};
  return {.shared = region_, .kept = kept_region_, .used = std::move(used)};
}

std::optional<SharedRegions> PoolClearance::shared_regions() const {
  const PlanRoom room = room_for_plan();
  if (room.shared == nullptr) return std::nullopt;
  return SharedRegions{.bytes = region_->bytes(),
                       .kept_bytes = kept_region_->bytes(),
                       .keeps_apart = room.kept != nullptr,
                       .taken = room.taken()};
}

void PoolClearance::drop_unused_regions(std::span<const c10::cuda::CUDAStream> replayed_on) {
  if (region_ == nullptr) return;
  for (std::shared_ptr<PlannedRegion>* const region : {&region_, &kept_region_}) {
    if ((*region)->bytes() == 0 || !(*region)->taken().empty()) continue;
    for (const c10::cuda::CUDAStream& stream : replayed_on) (*region)->record_stream(stream);
    *region = std::make_shared<PlannedRegion>(device_);
  }
}

void PoolClearance::drop_regions(std::span<const c10::cuda::CUDAStream> replayed_on) {
  for (std::shared_ptr<PlannedRegion>* const region : {&region_, &kept_region_}) {
    if (*region == nullptr) continue;
    for (const c10::cuda::CUDAStream& stream : replayed_on) (*region)->record_stream(stream);
    region->reset();
  }
}

}  // namespace pianola::graph
