#include <pianola/memory/plan_proof.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <tuple>
#include <vector>

namespace pianola::memory {
namespace {

struct Event {
  Moment at = 0;
  bool makes = false;
  std::size_t block = 0;
};

// At one moment all frees come first: what is freed when another one is made is free for it.
std::vector<Event> events_of(std::span<const Block> blocks) {
  std::vector<Event> events;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    events.push_back({.at = blocks[i].made, .makes = true, .block = i});
    if (blocks[i].freed != Block::kNever) {
      events.push_back({.at = std::max(blocks[i].freed, blocks[i].made + 1), .makes = false, .block = i});
    }
  }
  std::ranges::sort(events, {}, [](const Event& one) { return std::tuple(one.at, one.makes, one.block); });
  return events;
}

std::uint64_t bytes_of(const Block& block) {
  const std::uint64_t units = block.bytes / kBlockUnit + (block.bytes % kBlockUnit != 0 || block.bytes == 0 ? 1 : 0);
  return units * kBlockUnit;
}

std::string in_words(std::span<const Block> blocks, const OffsetPlan& plan, std::size_t i) {
  const std::uint64_t begin = plan.offsets[i];
  const std::string end = blocks[i].freed == Block::kNever ? "the end" : fmt::format("{}", blocks[i].freed);
  return fmt::format("block {} (bytes {} to {}, alive from {} to {})", i, begin, begin + bytes_of(blocks[i]),
                     blocks[i].made, end);
}

// By their ends, in order: the first that ends behind a block's begin is the only one that it may meet first.
std::optional<std::string> find_taken(std::span<const Block> blocks, const OffsetPlan& plan,
                                      std::span<const Piece> taken) {
  std::map<std::uint64_t, std::uint64_t> begins;  // by end
  for (const Piece& piece : taken) {
    if (piece.bytes != 0) begins.emplace(piece.address + piece.bytes, piece.address);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto next = begins.upper_bound(plan.offsets[i]);
    if (next == begins.end() || next->second >= plan.offsets[i] + bytes_of(blocks[i])) continue;
    return fmt::format("{} has some of bytes {} to {}, which are taken", in_words(blocks, plan, i), next->second,
                       next->first);
  }
  return std::nullopt;
}

std::optional<std::string> find_interfering(std::span<const Block> blocks, const OffsetPlan& plan,
                                            const Interference& interference) {
  if (interference.empty()) return std::nullopt;
  const auto end = [&](std::size_t i) { return plan.offsets[i] + bytes_of(blocks[i]); };
  for (std::size_t one = 0; one < blocks.size(); ++one) {
    for (std::size_t other = 0; other < one; ++other) {
      if (!interference.has(one, other)) continue;
      if (plan.offsets[one] >= end(other) || plan.offsets[other] >= end(one)) continue;
      return fmt::format("{} and {} have bytes in common, and may be in use at once", in_words(blocks, plan, other),
                         in_words(blocks, plan, one));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_flaw(std::span<const Block> blocks, const OffsetPlan& plan,
                                     std::span<const Piece> taken, const Interference& interference) {
  if (plan.offsets.size() != blocks.size()) {
    return fmt::format("the plan has {} offsets for {} blocks", plan.offsets.size(), blocks.size());
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (plan.offsets[i] % kBlockUnit != 0) return in_words(blocks, plan, i) + " lies between two units";
    if (plan.bytes < bytes_of(blocks[i]) || plan.offsets[i] > plan.bytes - bytes_of(blocks[i])) {
      return fmt::format("{} lies outside of the region of {} bytes", in_words(blocks, plan, i), plan.bytes);
    }
  }
  if (auto met = find_taken(blocks, plan, taken)) return met;
  if (auto met = find_interfering(blocks, plan, interference)) return met;
  std::map<std::uint64_t, std::size_t> live;  // by the first byte
  for (const Event& event : events_of(blocks)) {
    const std::uint64_t begin = plan.offsets[event.block], end = begin + bytes_of(blocks[event.block]);
    if (!event.makes) {
      live.erase(begin);
      continue;
    }
    const auto after = live.lower_bound(begin);
    std::optional<std::size_t> met;
    if (after != live.end() && after->first < end) met = after->second;
    if (after != live.begin()) {
      const auto before = std::prev(after);
      if (before->first + bytes_of(blocks[before->second]) > begin) met = before->second;
    }
    if (met) {
      return fmt::format("{} and {} have bytes in common", in_words(blocks, plan, *met),
                         in_words(blocks, plan, event.block));
    }
    live.emplace(begin, event.block);
  }
  return std::nullopt;
}

}  // namespace pianola::memory
