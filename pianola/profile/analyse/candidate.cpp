#include <pianola/profile/analyse/candidate.hpp>

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace pianola::profiling {
namespace {

constexpr double kAlike = 0.9;        // Of the work from the first cut on, that which must repeat.
constexpr double kInOrder = 2.0 / 3;  // Of the items, those that must come in one order.
constexpr std::size_t kDrift = 8;     // Items that may be missing or added at once without the order being lost.
constexpr double kOdd = 1.0 / 32;     // A part that differs by more of a typical part's work is odd.

}  // namespace

CandidateJudge::CandidateJudge(const IssueSequence& sequence) : sequence_(sequence), wanted_(sequence.symbols, 0) {
  const std::size_t n = sequence.items.size();
  for (auto* sums : {&weight_, &contents_}) sums->assign(n + 1, 0);
  optimizer_steps_.assign(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) {
    const IssuedItem& item = sequence.items[i];
    weight_[i + 1] = weight_[i] + item.weight;
    contents_[i + 1] = contents_[i] + scattered(item.symbol);
    optimizer_steps_[i + 1] = optimizer_steps_[i] + (item.optimizer_began ? 1 : 0);
  }
}

bool CandidateJudge::are_iterations(const std::vector<std::size_t>& cuts) const {
  const std::size_t parts = cuts.size() - 1;
  std::size_t with_step = 0;
  std::size_t within_module = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    if (optimizer_steps_[cuts[i + 1]] != optimizer_steps_[cuts[i]]) ++with_step;
    const std::uint32_t module = sequence_.items[cuts[i]].module;
    if (module != 0 && module == sequence_.items[cuts[i + 1]].module) ++within_module;
  }
  const bool steps_fit = sequence_.optimizer_steps == 0 || 10 * with_step >= 9 * parts;
  return steps_fit && 2 * within_module <= parts;
}

// The middle one of those whose contents most parts have; where no two are the same, the part of median weight.
std::size_t CandidateJudge::typical_part(const std::vector<std::size_t>& cuts) const {
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> groups;
  const std::vector<std::size_t>* largest = nullptr;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::vector<std::size_t>& group = groups[contents(cuts[i], cuts[i + 1])];
    group.push_back(i);
    if (largest == nullptr || group.size() > largest->size()) largest = &group;
  }
  if (largest->size() > 1) return (*largest)[largest->size() / 2];
  std::vector<std::size_t> parts(cuts.size() - 1);
  std::iota(parts.begin(), parts.end(), std::size_t{0});
  const auto middle = parts.begin() + static_cast<std::ptrdiff_t>(parts.size() / 2);
  std::ranges::nth_element(parts, middle, {}, [&](std::size_t i) { return weight(cuts[i], cuts[i + 1]); });
  return *middle;
}

// Long parts of any work have about the same contents, but not in the same order.
std::size_t CandidateJudge::in_order(std::size_t begin, std::size_t end, const Repetition& repetition) const {
  const auto symbol = [&](std::size_t item) { return sequence_.items[item].symbol; };
  std::size_t other = repetition.begin();
  const std::size_t last = other + repetition.length();
  std::size_t count = 0;
  bool followed = true;
  while (begin < end && other < last) {
    if (symbol(begin) == symbol(other)) {
      count += followed ? 1 : 0;
      followed = true;
      ++begin;
      ++other;
      continue;
    }
    followed = false;
    std::size_t drift = 1;
    const auto added = [&] { return begin + drift < end && symbol(begin + drift) == symbol(other); };
    const auto missing = [&] { return other + drift < last && symbol(begin) == symbol(other + drift); };
    while (drift <= kDrift && !added() && !missing()) ++drift;
    if (drift > kDrift) {
      ++begin;
      ++other;
    } else if (added()) {
      begin += drift;
    } else {
      other += drift;
    }
  }
  return count;
}

CandidateJudge::Overlap CandidateJudge::overlap(std::size_t begin, std::size_t end, const Repetition& repetition) {
  const std::size_t from = repetition.begin();
  const std::size_t to = from + repetition.length();
  const std::uint64_t own = weight(begin, end);
  const std::uint64_t typical = weight(from, to);
  if (contents(begin, end) == contents(from, to)) return {own, own, end - begin};
  for (std::size_t i = from; i < to; ++i) ++wanted_[sequence_.items[i].symbol];
  Overlap result{.common = 0, .larger = std::max(own, typical), .in_order = in_order(begin, end, repetition)};
  for (std::size_t i = begin; i < end; ++i) {
    std::uint32_t& wanted = wanted_[sequence_.items[i].symbol];
    if (wanted == 0) continue;
    --wanted;
    result.common += sequence_.items[i].weight;
  }
  for (std::size_t i = from; i < to; ++i) wanted_[sequence_.items[i].symbol] = 0;
  return result;
}

std::optional<Candidate> CandidateJudge::judge(const Anchors& anchors) {
  if (!are_iterations(anchors.at)) return std::nullopt;
  Candidate candidate{.repetition = {.cuts = anchors.at, .typical = typical_part(anchors.at)}, .odd = {}};
  const Repetition& repetition = candidate.repetition;
  candidate.weight = weight(repetition.begin(), repetition.begin() + repetition.length());
  Overlap all;
  for (std::size_t i = 0; i < candidate.parts(); ++i) {
    const std::size_t begin = repetition.cuts[i];
    const std::size_t end = repetition.cuts[i + 1];
    const Overlap part = overlap(begin, end, repetition);
    all = {all.common + part.common, all.larger + part.larger, all.in_order + part.in_order};
    const std::uint64_t differing = weight(begin, end) + candidate.weight - 2 * part.common;
    if (static_cast<double>(differing) > kOdd * static_cast<double>(candidate.weight)) candidate.odd.push_back(i);
  }
  const std::size_t first = repetition.cuts.front();
  const std::size_t last = repetition.cuts.back();
  if (static_cast<double>(all.in_order) < kInOrder * static_cast<double>(last - first)) return std::nullopt;
  candidate.unlike = 1 - static_cast<double>(all.common) / static_cast<double>(all.larger);
  // What follows the last cut may be less than a typical part, since it may be cut off, but not other work.
  const std::size_t n = sequence_.items.size();
  all.common += overlap(last, n, repetition).common;
  all.larger += weight(last, n);
  if (static_cast<double>(all.common) < kAlike * static_cast<double>(all.larger)) return std::nullopt;
  const std::size_t unfinished = first - std::min(first, repetition.length());
  candidate.covered = all.common + overlap(unfinished, first, repetition).common;
  return candidate;
}

}  // namespace pianola::profiling
