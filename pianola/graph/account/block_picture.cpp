#include <pianola/graph/account/block_picture.hpp>

#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>

namespace pianola::graph {
namespace {

using trace::StepBlock;

constexpr std::size_t kMostUsers = 12;  // of a report

std::string operation_in_words(const OpTrace& trace, std::int32_t number) {
  if (number < 0 || static_cast<std::size_t>(number) >= trace.ops().size()) return "before the first operation";
  const OpRecord& op = trace.ops()[static_cast<std::size_t>(number)];
  const std::string place = trace.place(op);
  return place.empty() ? trace.name(op) : fmt::format("{}, {}", trace.name(op), place);
}

// Each operation's words are looked for once: that reads debug information.
class Owners {
 public:
  explicit Owners(const OpTrace& trace) : trace_(trace) {}

  std::uint32_t owner_of(const StepBlock& block) {
    const auto [known, is_new] = of_operation_.try_emplace(block.made_in, 0);
    if (!is_new) return known->second;
    const auto [place, is_new_place] =
        of_words_.try_emplace(operation_in_words(trace_, block.made_in), static_cast<std::uint32_t>(words_.size()));
    if (is_new_place) words_.push_back(place->first);
    return known->second = place->second;
  }
  [[nodiscard]] std::vector<std::string> take() { return std::move(words_); }

 private:
  const OpTrace& trace_;
  std::map<std::int32_t, std::uint32_t> of_operation_;
  std::map<std::string, std::uint32_t> of_words_;
  std::vector<std::string> words_;
};

std::vector<MemoryUser> users_at(memory::Moment moment, const memory::Picture& picture) {
  std::vector<MemoryUser> users(picture.owners.size());
  for (std::size_t i = 0; i < users.size(); ++i) users[i].place = picture.owners[i];
  for (const memory::PicturedBlock& block : picture.blocks) {
    if (block.life.made > moment || block.life.freed <= moment) continue;
    users[block.owner].bytes += block.life.bytes;
    ++users[block.owner].blocks;
  }
  std::erase_if(users, [](const MemoryUser& user) { return user.blocks == 0; });
  std::ranges::stable_sort(users, std::ranges::greater{}, &MemoryUser::bytes);
  return users;
}

}  // namespace

BlockPicture picture_of(const std::vector<StepBlock>& blocks, const OpTrace& trace) {
  BlockPicture seen;
  Owners owners(trace);
  for (const StepBlock& block : blocks) {
    memory::Block life = block.life;
    life.bytes = memory::in_whole_units(life.bytes);
    seen.lives.push_back(life);
    seen.handed_out += life.bytes;
    if (life.freed == memory::Block::kNever) seen.left += life.bytes;
    seen.picture.blocks.push_back(
        {.life = life, .owner = owners.owner_of(block), .made_in = block.made_in, .freed_in = block.freed_in});
  }
  seen.picture.owners = owners.take();
  const memory::Peak peak = memory::peak_of(seen.lives);
  seen.at_most = peak.bytes;
  seen.at_peak = users_at(peak.at, seen.picture);
  const auto made_last = std::ranges::find(seen.lives, peak.at, &memory::Block::made);
  if (made_last != seen.lives.end()) {
    const auto which = static_cast<std::size_t>(made_last - seen.lives.begin());
    seen.peak_place = seen.picture.owners[seen.picture.blocks[which].owner];
  }
  return seen;
}

BlockPicture picture_in(const std::vector<ByteSpan>& segments, std::vector<StepBlock> blocks, const OpTrace& trace) {
  std::vector<std::uint64_t> begins, offsets;
  std::uint64_t bytes = 0;
  for (const ByteSpan& segment : segments) {
    begins.push_back(bytes);
    bytes += segment.size();
  }
  std::erase_if(blocks, [&](const StepBlock& block) {
    const auto in = std::ranges::find_if(segments, [&](const ByteSpan& span) { return span.contains(block.address); });
    if (in == segments.end()) return true;
    offsets.push_back(begins[static_cast<std::size_t>(in - segments.begin())] + (block.address - in->begin));
    return false;
  });
  BlockPicture seen = picture_of(blocks, trace);
  seen.picture.places = {.offsets = std::move(offsets), .bytes = bytes, .bound = seen.at_most};
  seen.picture.pool = bytes;
  seen.picture.segments = std::move(begins);
  return seen;
}

ReportTable table_of(const std::vector<MemoryUser>& at_peak) {
  ReportTable users("at_peak", "In use there", {{"made at"}, {"blocks"}, {"bytes", "bytes", "bytes"}});
  for (std::size_t i = 0; i < std::min(at_peak.size(), kMostUsers); ++i) {
    users.row({at_peak[i].place, at_peak[i].blocks, at_peak[i].bytes});
  }
  return users;
}

}  // namespace pianola::graph
