#include <pianola/memory/apart_plan.hpp>

#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/plan_proof.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace pianola::memory {

ApartPlan plan_apart(std::span<const Block> blocks, const TakenApart& taken) {
  std::vector<Block> scratch, kept;
  for (const Block& block : blocks) (block.freed == Block::kNever ? kept : scratch).push_back(block);
  const OffsetPlan of_scratch = plan_offsets(scratch, taken.of_scratch), of_kept = plan_offsets(kept, taken.of_kept);
  ApartPlan plan{.offsets = {}, .scratch_bytes = of_scratch.bytes, .kept_bytes = of_kept.bytes};
  auto next_scratch = of_scratch.offsets.begin(), next_kept = of_kept.offsets.begin();
  for (const Block& block : blocks)
    plan.offsets.push_back(block.freed == Block::kNever ? *next_kept++ : *next_scratch++);
  return plan;
}

std::optional<std::string> find_flaw(std::span<const Block> blocks, const ApartPlan& plan, const TakenApart& taken) {
  if (plan.offsets.size() != blocks.size()) {
    return fmt::format("the plan has {} offsets for {} blocks", plan.offsets.size(), blocks.size());
  }
  for (const bool of_kept : {false, true}) {
    std::vector<Block> some;
    OffsetPlan part{.offsets = {}, .bytes = of_kept ? plan.kept_bytes : plan.scratch_bytes, .bound = 0};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if ((blocks[i].freed == Block::kNever) != of_kept) continue;
      some.push_back(blocks[i]);
      part.offsets.push_back(plan.offsets[i]);
    }
    auto flaw = find_flaw(some, part, of_kept ? taken.of_kept : taken.of_scratch);
    if (flaw) return fmt::format("of what is {}, {}", of_kept ? "never freed" : "freed", *flaw);
  }
  return std::nullopt;
}

std::vector<Piece> united(std::span<const Piece> some, std::span<const Piece> others) {
  std::vector<Piece> all(some.begin(), some.end());
  all.insert(all.end(), others.begin(), others.end());
  std::erase_if(all, [](const Piece& piece) { return piece.bytes == 0; });
  std::ranges::sort(all, {}, &Piece::address);
  std::vector<Piece> apart;
  for (const Piece& piece : all) {
    const std::uint64_t end = piece.address + in_whole_units(piece.bytes);
    if (apart.empty() || apart.back().address + apart.back().bytes < piece.address) {
      apart.push_back({.address = piece.address, .bytes = end - piece.address});
    } else {
      apart.back().bytes = std::max(apart.back().address + apart.back().bytes, end) - apart.back().address;
    }
  }
  return apart;
}

}  // namespace pianola::memory
