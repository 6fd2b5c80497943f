#include <pianola/memory/apart_plan.hpp>

#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/plan_proof.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace pianola::memory {

ApartPlan plan_apart(std::span<const Block> blocks, const TakenApart& taken, const Interference& interference) {
  std::vector<std::size_t> scratch, kept;
  for (std::size_t i = 0; i < blocks.size(); ++i) (blocks[i].freed == Block::kNever ? kept : scratch).push_back(i);
  ApartPlan plan{.offsets = std::vector<std::uint64_t>(blocks.size()), .scratch_bytes = 0, .kept_bytes = 0};
  const auto lay = [&](const std::vector<std::size_t>& some, std::span<const Piece> beside) {
    std::vector<Block> lives;
    for (const std::size_t i : some) lives.push_back(blocks[i]);
    const OffsetPlan part = plan_offsets(lives, beside, interference.among(some));
    for (std::size_t i = 0; i < some.size(); ++i) plan.offsets[some[i]] = part.offsets[i];
    return part.bytes;
  };
  plan.scratch_bytes = lay(scratch, taken.of_scratch);
  plan.kept_bytes = lay(kept, taken.of_kept);
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
