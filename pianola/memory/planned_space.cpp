#include <pianola/memory/planned_space.hpp>

namespace pianola::memory {

PlannedSpace::PlannedSpace(const StepRun& run, const OffsetPlan& plan, RegionSpace& space)
    : PlannedSpace(run, plan.offsets, space, nullptr) {}

PlannedSpace::PlannedSpace(const StepRun& run, const ApartPlan& plan, RegionSpace& scratch, RegionSpace& kept)
    : PlannedSpace(run, plan.offsets, scratch, &kept) {}

PlannedSpace::PlannedSpace(const StepRun& run, std::span<const std::uint64_t> offsets, RegionSpace& space,
                           RegionSpace* kept)
    : operation_(run.operations), space_(&space), kept_(kept) {
  places_.reserve(run.blocks.size());
  begins_.reserve(run.operations.size() + 2);
  for (std::size_t i = 0; i < run.blocks.size(); ++i) {
    while (static_cast<std::int64_t>(begins_.size()) - 1 <= run.made_in[i]) begins_.push_back(i);
    places_.push_back({.offset = offsets[i],
                       .bytes = in_whole_units(run.blocks[i].bytes),
                       .is_kept = kept != nullptr && run.blocks[i].freed == Block::kNever});
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

const PlannedSpace::Planned* PlannedSpace::next_of(std::uint64_t bytes) {
  for (std::size_t i = next_; i < end_; ++i) {
    if (places_[i].bytes != bytes) continue;
    next_ = i + 1;
    return &places_[i];
  }
  return nullptr;
}

std::optional<PlannedSpace::Place> PlannedSpace::take(std::uint64_t bytes) {
  bytes = in_whole_units(bytes);
  const Planned* const place = next_of(bytes);
  if (place == nullptr) return refuse();
  RegionSpace& space = place->is_kept ? *kept_ : *space_;
  if (!space.take({.address = place->offset, .bytes = bytes})) return refuse();
  return Place{.offset = place->offset, .is_kept = place->is_kept};
}

std::nullopt_t PlannedSpace::refuse() {
  ++refused_;
  return std::nullopt;
}

}  // namespace pianola::memory
