#include <pianola/profile/analyse/issue_sequence.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string_view>
#include <unordered_map>

namespace pianola::profiling {
namespace {

constexpr double kShareToTrust =
    0.9;  // Of the work, that whose call must be known for the order of the calls to count.

struct IssuedPiece {
  TimeSpan host;
  std::uint32_t position;
  std::uint32_t call;
};

/// Numbers for what was issued, from 0.
class Symbols {
 public:
  explicit Symbols(std::size_t names) : of_work_(4 * names, kNew) {}

  std::uint32_t of(const DeviceWork& work) {
    std::uint32_t& symbol = of_work_[static_cast<std::size_t>(work.kind) + 4 * std::size_t{work.name}];
    if (symbol == kNew) symbol = count_++;
    return symbol;
  }
  std::uint32_t of_graph(std::uint64_t contents) {
    const auto [at, is_new] = of_graph_.try_emplace(contents, count_);
    if (is_new) ++count_;
    return at->second;
  }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }

 private:
  static constexpr std::uint32_t kNew = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> of_work_;
  std::unordered_map<std::uint64_t, std::uint32_t> of_graph_;
  std::uint32_t count_ = 0;
};

std::vector<IssuedPiece> pieces_of(const DeviceWorkList& list, const Issued& issued, bool by_calls) {
  const auto counts = [&](std::size_t i) { return copy_direction(*list.timeline, list[i]) != CopyDirection::to_host; };
  bool any = false;
  for (std::size_t i = 0; i < list.size() && !any; ++i) any = counts(i);
  std::vector<IssuedPiece> pieces;
  pieces.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (any && !counts(i)) continue;
    const HostCall* call = by_calls ? issued.call(i) : nullptr;
    if (by_calls && call == nullptr) continue;
    const TimeSpan host = call == nullptr ? list[i].time : call->time;
    pieces.push_back({host, static_cast<std::uint32_t>(i), by_calls ? issued.call_of(i) : Issued::kNone});
  }
  const auto earlier = [](const IssuedPiece& a, const IssuedPiece& b) {
    return a.host.begin != b.host.begin ? a.host.begin < b.host.begin : a.call < b.call;
  };
  if (!std::ranges::is_sorted(pieces, earlier)) std::ranges::stable_sort(pieces, earlier);
  return pieces;
}

IssuedItem item_of(const DeviceWorkList& list, std::span<const IssuedPiece> pieces, Symbols& symbols) {
  IssuedItem item{.host = pieces.front().host, .device = list[pieces.front().position].time};
  std::uint64_t contents = 0;  // Branches of a graph run side by side: a set, not a sequence.
  for (const IssuedPiece& piece : pieces) {
    const DeviceWork& work = list[piece.position];
    item.device.begin = std::min(item.device.begin, work.time.begin);
    item.device.end = std::max(item.device.end, work.time.end);
    contents += scattered(4 * std::uint64_t{work.name} + static_cast<std::uint64_t>(work.kind));
  }
  item.weight = static_cast<std::uint32_t>(pieces.size());
  item.symbol = pieces.size() == 1 ? symbols.of(list[pieces.front().position]) : symbols.of_graph(contents);
  return item;
}

IssueSequence sequence_of(const DeviceWorkList& list, std::span<const IssuedPiece> pieces) {
  IssueSequence sequence;
  sequence.items.reserve(pieces.size());
  Symbols symbols(list.timeline->names());
  while (!pieces.empty()) {
    std::size_t same_call = 1;
    while (same_call < pieces.size() && pieces[same_call].call == pieces[0].call && pieces[0].call != Issued::kNone) {
      ++same_call;
    }
    sequence.items.push_back(item_of(list, pieces.first(same_call), symbols));
    pieces = pieces.subspan(same_call);
  }
  sequence.symbols = symbols.count();
  return sequence;
}

// Without calls a gap is one of the device, which is idle only after all that began before has ended.
void wait_for_those_before(std::vector<IssuedItem>& items) {
  for (std::size_t i = 1; i < items.size(); ++i) items[i].host.end = std::max(items[i].host.end, items[i - 1].host.end);
}

void mark_optimizers(const DeviceWorkList& list, IssueSequence& sequence) {
  const Timeline& timeline = *list.timeline;
  const auto item_after = [&](Nanoseconds time) {
    return std::ranges::lower_bound(sequence.items, time, {}, [](const IssuedItem& item) { return item.host.begin; });
  };
  for (const HostRange& range : timeline.ranges) {
    if (range.kind != HostRange::Kind::annotation || range.process != list.process) continue;
    if (!timeline.name(range.name).starts_with("Optimizer.step#")) continue;
    const auto first = item_after(range.time.begin);
    const auto after = item_after(range.time.end);
    if (first == after) continue;
    first->optimizer_began = true;
    if (after != sequence.items.end()) after->optimizer_ended = true;
    ++sequence.optimizer_steps;
  }
}

// Where no range names the optimizer's step, its kernels do. They tell where it ends, not that there was one: gradients are
// clipped, and averages kept, with the same kernels.
void mark_ends_of_optimizers_kernels(const DeviceWorkList& list, std::span<const IssuedPiece> pieces,
                                     IssueSequence& sequence) {
  enum class Known : std::uint8_t { no_answer, no, yes };
  std::vector<Known> known(list.timeline->names(), Known::no_answer);
  const auto is_optimizers = [&](NameId name) {
    if (known[name] == Known::no_answer) {
      known[name] = is_optimizers_kernel(list.timeline->name(name)) ? Known::yes : Known::no;
    }
    return known[name] == Known::yes;
  };
  bool before = false;
  std::size_t item = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0 && pieces[i].call == pieces[i - 1].call && pieces[i].call != Issued::kNone) continue;
    const bool now = is_optimizers(list[pieces[i].position].name);
    if (before && !now) sequence.items[item].optimizer_ended = true;
    before = now;
    ++item;
  }
}

// Calls of modules that lie inside no other; calls of several threads one after another get ascending numbers.
void mark_modules(const DeviceWorkList& list, const std::vector<std::int64_t>& threads, IssueSequence& sequence) {
  std::map<std::int64_t, std::vector<TimeSpan>> outermost;
  for (const HostRange& range : list.timeline->ranges) {
    if (range.kind != HostRange::Kind::module || range.process != list.process) continue;
    std::vector<TimeSpan>& calls = outermost[range.thread];
    if (calls.empty() || calls.back().end <= range.time.begin) calls.push_back(range.time);
  }
  std::uint32_t before = 1;
  for (const auto& [thread, calls] : outermost) {
    for (std::size_t i = 0; i < sequence.items.size(); ++i) {
      if (threads[i] != thread) continue;
      const Nanoseconds time = sequence.items[i].host.begin;
      const auto next = std::ranges::upper_bound(calls, time, {}, &TimeSpan::begin);
      if (next == calls.begin() || !(next - 1)->contains(time)) continue;
      sequence.items[i].module = before + static_cast<std::uint32_t>(next - 1 - calls.begin());
    }
    before += static_cast<std::uint32_t>(calls.size());
  }
}

std::vector<std::int64_t> threads_of(const DeviceWorkList& list, std::span<const IssuedPiece> pieces) {
  std::vector<std::int64_t> threads;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const IssuedPiece& piece = pieces[i];
    if (i > 0 && piece.call == pieces[i - 1].call && piece.call != Issued::kNone) continue;
    threads.push_back(piece.call == Issued::kNone ? list[piece.position].stream
                                                  : list.timeline->calls[piece.call].thread);
  }
  return threads;
}

}  // namespace

std::uint64_t scattered(std::uint64_t value) noexcept {
  value = (value + 1) * 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 32U)) * 0xd6e8feb86659fd93ULL;
  return value ^ (value >> 32U);
}

bool is_optimizers_kernel(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {"multi_tensor_apply", "FusedOptimizer", "fused_adam",
                                                      "_foreach_"};
  return std::ranges::any_of(kNames, [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

IssueSequence issue_sequence(const DeviceWorkList& list, const Issued& issued) {
  const bool by_calls = !list.on_cpu() && issued.share_known() >= kShareToTrust;
  const std::vector<IssuedPiece> pieces = pieces_of(list, issued, by_calls);
  IssueSequence sequence = sequence_of(list, pieces);
  if (by_calls || list.on_cpu()) {
    mark_optimizers(list, sequence);
    mark_modules(list, threads_of(list, pieces), sequence);
  }
  if (sequence.optimizer_steps == 0) mark_ends_of_optimizers_kernels(list, pieces, sequence);
  if (!by_calls) wait_for_those_before(sequence.items);
  return sequence;
}

}  // namespace pianola::profiling
