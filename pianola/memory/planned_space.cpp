#include <pianola/memory/planned_space.hpp>

namespace pianola::memory {

PlannedSpace::PlannedSpace(const StepRun& run, const OffsetPlan& plan, RegionSpace& space)
    : operation_(run.operations), space_(&space) {
  places_.reserve(run.blocks.size());
  begins_.reserve(run.operations.size() + 2);
  for (std::size_t i = 0; i < run.blocks.size(); ++i) {
    while (static_cast<std::int64_t>(begins_.size()) - 1 <= run.made_in[i]) begins_.push_back(i);
    places_.push_back({.offset = plan.offsets[i], .bytes = in_whole_units(run.blocks[i].bytes)});
  }
  begins_.resize(run.operations.size() + 2, places_.size());
  go_to(-1);
}

void PlannedSpace::go_to(std::int64_t operation) {
  next_ = end_ = 0;
  if (operation == SamePlace::kUnknown) return;
  next_ = begins_[static_cast<std::size_t>(operation + 1)];
  end_ = begins_[static_cast<std::size_t>(operation + 2)];
}

void PlannedSpace::begin_operation(const void* operation) {
  operation_.advance(operation);
  go_to(operation_.now());
}

const PlannedSpace::Place* PlannedSpace::next_of(std::uint64_t bytes) {
  for (std::size_t i = next_; i < end_; ++i) {
    if (places_[i].bytes != bytes) continue;
    next_ = i + 1;
    return &places_[i];
  }
  return nullptr;
}

std::optional<std::uint64_t> PlannedSpace::take(std::uint64_t bytes) {
  bytes = in_whole_units(bytes);
  const Place* const place = next_of(bytes);
  if (place == nullptr || !space_->take({.address = place->offset, .bytes = bytes})) return refuse();
  return place->offset;
}

std::nullopt_t PlannedSpace::refuse() {
  ++refused_;
  return std::nullopt;
}

}  // namespace pianola::memory
