#include <pianola/profile/analyse/repetition.hpp>

#include <pianola/profile/analyse/candidate.hpp>
#include <pianola/profile/analyse/median.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr std::size_t kCandidates = 12;     // Periods looked into for each length of symbols.
constexpr std::size_t kLongestSymbol = 64;  // Items; longer ones are tried only as long as nothing was found.
constexpr double kMuchCovered = 0.9;        // Of what the best candidate covers.
constexpr std::size_t kSmall = 32;          // Pieces of work of a layer; parts with more are not joined by gaps.
constexpr std::size_t kNearEnd = 2;         // Items by which an unfinished repetition may differ.
constexpr std::size_t kContext = 4;         // Items on either side that tell where a cut belongs.
constexpr int kPhases = 6;                  // Of a program, looked at from its end on.
constexpr Nanoseconds kClearlyLonger = 4;   // An earlier phase has to be so many times as long as a later one.

std::vector<std::uint32_t> symbols_of(const IssueSequence& sequence) {
  std::vector<std::uint32_t> symbols;
  symbols.reserve(sequence.items.size());
  for (const IssuedItem& item : sequence.items) symbols.push_back(item.symbol);
  return symbols;
}

std::vector<std::size_t> optimizer_cuts(const IssueSequence& sequence) {
  std::vector<std::size_t> cuts;
  for (std::size_t i = 0; i < sequence.items.size(); ++i) {
    if (sequence.items[i].optimizer_began) cuts.push_back(i);
  }
  return cuts;
}

// Whether the odd parts of `inner` are where repetitions of `outer` follow each other: then the inner ones are layers.
bool refutes(const Candidate& outer, const Candidate& inner) {
  if (2 * outer.weight < 3 * inner.weight || inner.odd.empty() || 2 * outer.unlike > inner.unlike) return false;
  const std::vector<std::size_t>& cuts = inner.repetition.cuts;
  std::size_t with_odd = 0;
  for (std::size_t i = 0; i < outer.parts(); ++i) {
    const auto ends_after = [&](std::size_t part) { return cuts[part + 1] > outer.repetition.cuts[i]; };
    const auto odd = std::ranges::find_if(inner.odd, ends_after);
    if (odd != inner.odd.end() && cuts[*odd] < outer.repetition.cuts[i + 1]) ++with_odd;
  }
  return 5 * with_odd >= 4 * outer.parts();
}

// The shortest of those that cover most, unless a longer one shows that its repetitions are layers.
const Candidate* best_candidate(const std::vector<Candidate>& candidates) {
  std::uint64_t most = 0;
  for (const Candidate& candidate : candidates) most = std::max(most, candidate.covered);
  const auto covers_much = [&](const Candidate& candidate) {
    return static_cast<double>(candidate.covered) >= kMuchCovered * static_cast<double>(most);
  };
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (!covers_much(candidate)) continue;
    const auto refuting = [&](const Candidate& other) { return covers_much(other) && refutes(other, candidate); };
    if (std::ranges::any_of(candidates, refuting)) continue;
    const auto rank = [](const Candidate& c) { return std::pair(c.weight, c.unlike); };
    if (best == nullptr || rank(candidate) < rank(*best)) best = &candidate;
  }
  return best;
}

// Odd parts at equal distances are part of a longer period, which longer symbols may find.
bool is_settled(const Candidate& best) {
  if (best.odd.size() < 2) return true;
  for (std::size_t i = 2; i < best.odd.size(); ++i) {
    if (best.odd[i] - best.odd[i - 1] != best.odd[1] - best.odd[0]) return true;
  }
  return false;
}

// Small equal parts of which the host issues several at once and then pauses, are layers: those between two pauses
// are an iteration.
void join_layers(const IssueSequence& sequence, Candidate& candidate) {
  Repetition& repetition = candidate.repetition;
  if (candidate.weight > kSmall) return;
  std::vector<Nanoseconds> pauses;
  for (std::size_t i = 0; i < candidate.parts(); ++i) {
    Nanoseconds longest = 0;
    for (std::size_t k = repetition.cuts[i]; k < repetition.cuts[i + 1]; ++k) {
      longest = std::max(longest, sequence.gap_before(k));
    }
    pauses.push_back(longest);
  }
  std::vector<Nanoseconds> sorted = pauses;
  const auto quarter = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 4);
  std::ranges::nth_element(sorted, quarter);  // of two layers every other one comes after a pause
  const Nanoseconds usual = std::max<Nanoseconds>(*quarter, 1);
  std::vector<std::size_t> cuts;
  for (std::size_t i = 0; i < pauses.size(); ++i) {
    if (pauses[i] > 3 * usual) cuts.push_back(repetition.cuts[i]);
  }
  const std::size_t pauses_found = cuts.size();
  const Anchors joined = anchors_of(std::move(cuts));
  if (joined.at.size() < 3 || 10 * joined.at.size() < 8 * pauses_found) return;
  if (joined.distance < 2 * repetition.length()) return;
  for (std::size_t i = 0; i + 1 < joined.at.size(); ++i) {
    if (joined.at[i + 1] - joined.at[i] != joined.distance) continue;
    repetition = {.cuts = joined.at, .typical = i};
    return;
  }
}

/// Finds where a repetition begins that is to be cut `offset` items later.
class Aligner {
 public:
  Aligner(const IssueSequence& sequence, std::size_t model) : sequence_(sequence), model_(model) {}

  // Of the items around, how many are those around the model.
  [[nodiscard]] std::size_t agreement(std::size_t at) const { return before(at).same + after(at).same; }

  // Whether what follows, or what came before, is that of the model; either may be missing at an end of the sequence.
  [[nodiscard]] bool agrees(std::size_t at) const {
    if (symbol(model_) != symbol(at)) return false;
    for (const Compared& side : {before(at), after(at)}) {
      if (side.items > 0 && 4 * side.same >= 3 * side.items) return true;
    }
    return false;
  }

  // The place near `guess` that agrees best.
  [[nodiscard]] std::size_t nearest(std::size_t guess, std::size_t reach) const {
    std::size_t best = std::min(guess, sequence_.items.size() - 1);
    std::size_t best_agreement = agreement(best);
    for (std::size_t off = 1; off <= reach; ++off) {
      for (const std::size_t at : {guess + off, guess - off}) {
        if (at >= sequence_.items.size() || agreement(at) <= best_agreement) continue;  // guess - off may wrap around
        best = at;
        best_agreement = agreement(at);
      }
    }
    return best;
  }

 private:
  struct Compared {
    std::size_t items = 0;
    std::size_t same = 0;
  };

  [[nodiscard]] Compared before(std::size_t at) const {
    Compared side;
    for (std::size_t k = 1; k <= std::min({kContext, at, model_}); ++k) {
      ++side.items;
      if (symbol(model_ - k) == symbol(at - k)) ++side.same;
    }
    return side;
  }
  [[nodiscard]] Compared after(std::size_t at) const {
    Compared side;
    const std::size_t n = sequence_.items.size();
    for (std::size_t k = 0; k <= std::min({kContext, n - 1 - at, n - 1 - model_}); ++k) {
      ++side.items;
      if (symbol(model_ + k) == symbol(at + k)) ++side.same;
    }
    return side;
  }
  [[nodiscard]] std::uint32_t symbol(std::size_t item) const { return sequence_.items[item].symbol; }

  const IssueSequence& sequence_;
  std::size_t model_;
};

// Of the parts as long as the typical one, for each item the median of the gaps before it.
std::size_t offset_of_begin(const IssueSequence& sequence, const Repetition& repetition) {
  constexpr std::size_t kEnough = 101;
  std::vector<std::size_t> alike;
  for (std::size_t i = 0; i + 1 < repetition.cuts.size() && alike.size() < kEnough; ++i) {
    const std::size_t cut = repetition.cuts[i];
    if (cut > 0 && repetition.cuts[i + 1] - cut == repetition.length()) alike.push_back(cut);
  }
  if (alike.empty()) alike.push_back(repetition.begin());
  std::size_t best = 0;
  std::pair<bool, Nanoseconds> best_rank{false, -1};
  std::vector<Nanoseconds> gaps(alike.size());
  for (std::size_t offset = 0; offset < repetition.length(); ++offset) {
    for (std::size_t i = 0; i < alike.size(); ++i) gaps[i] = sequence.gap_before(alike[i] + offset);
    const bool after_optimizer = sequence.items[repetition.begin() + offset].optimizer_ended;
    const std::pair rank(after_optimizer, median(gaps));
    if (rank <= best_rank) continue;
    best = offset;
    best_rank = rank;
  }
  return best;
}

// As find_repetition(), up to the end of the sequence.
std::optional<Repetition> find_at_end(const IssueSequence& sequence) {
  if (sequence.items.size() < 3) return std::nullopt;
  CandidateJudge judge(sequence);
  std::vector<Candidate> candidates;
  const auto consider = [&](const Anchors& anchors) {
    if (anchors.at.empty()) return;
    if (auto candidate = judge.judge(anchors)) candidates.push_back(std::move(*candidate));
  };
  consider(anchors_of(optimizer_cuts(sequence)));
  std::vector<std::uint32_t> symbols = symbols_of(sequence);
  std::uint32_t count = sequence.symbols;
  const Candidate* best = nullptr;
  for (std::size_t length = 1; count > 0 && length <= symbols.size(); length *= 2) {
    for (const Anchors& anchors : find_anchors(symbols, count, kCandidates)) consider(anchors);
    best = best_candidate(candidates);
    if (best != nullptr && (is_settled(*best) || length >= kLongestSymbol)) break;
    count = double_length(symbols, length);
  }
  if (best == nullptr) return std::nullopt;
  Candidate found = *best;
  join_layers(sequence, found);
  return found.repetition;
}

// The optimizer's steps are those of all: where there are any, iterations have them.
IssueSequence first_items(const IssueSequence& sequence, std::size_t count) {
  return {.items = {sequence.items.begin(), sequence.items.begin() + static_cast<std::ptrdiff_t>(count)},
          .symbols = sequence.symbols,
          .optimizer_steps = sequence.optimizer_steps};
}

Nanoseconds length_of(const IssueSequence& sequence, const Repetition& repetition) {
  return sequence.items[repetition.cuts.back()].host.begin - sequence.items[repetition.cuts.front()].host.begin;
}

}  // namespace

std::optional<Repetition> find_repetition(const IssueSequence& sequence) {
  std::optional<Repetition> last = find_at_end(sequence);
  std::optional<Repetition> best = last;
  for (int phase = 1; phase < kPhases && last; ++phase) {
    const std::size_t end = last->cuts.front();
    const Nanoseconds enough = kClearlyLonger * length_of(sequence, *best);
    if (end < 3 || sequence.items[end - 1].host.end - sequence.items.front().host.begin < enough) break;
    last = find_at_end(first_items(sequence, end));
    if (last && length_of(sequence, *last) > enough) best = last;
  }
  return best;
}

Repetition begin_at_gap(const IssueSequence& sequence, const Repetition& repetition) {
  const std::size_t offset = offset_of_begin(sequence, repetition);
  const std::size_t length = repetition.length();
  const Aligner aligner(sequence, repetition.begin() + offset);
  Repetition rotated;
  const auto add = [&](std::size_t cut) {
    if (rotated.cuts.empty() || cut > rotated.cuts.back()) rotated.cuts.push_back(cut);
  };
  const std::size_t first = repetition.cuts.front() + offset;
  if (first >= length) {
    const std::size_t before = aligner.nearest(first - length, std::min(kNearEnd, length / 4));
    if (aligner.agrees(before) && completeness(sequence, repetition, before) > kMuchCovered) add(before);
  }
  for (std::size_t i = 0; i + 1 < repetition.cuts.size(); ++i) {
    const std::size_t own = repetition.cuts[i + 1] - repetition.cuts[i];
    const std::size_t reach = own > length ? own - length : length - own;
    if (i == repetition.typical) rotated.typical = rotated.cuts.size();
    add(aligner.nearest(repetition.cuts[i] + offset, reach));
  }
  const std::size_t last = repetition.cuts.back() + offset;
  if (last < sequence.items.size()) {
    const std::size_t after = aligner.nearest(last, std::min(kNearEnd, length / 4));
    if (aligner.agrees(after)) add(after);
  }
  rotated.typical = std::min(rotated.typical, rotated.cuts.size() - 2);
  return rotated;
}

double completeness(const IssueSequence& sequence, const Repetition& repetition, std::size_t from) {
  const std::size_t length = repetition.length();
  std::vector<std::uint32_t> wanted(sequence.symbols, 0);
  std::uint64_t typical = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const IssuedItem& item = sequence.items[repetition.begin() + i];
    ++wanted[item.symbol];
    typical += item.weight;
  }
  std::uint64_t common = 0;
  for (std::size_t i = from; i < std::min(from + length, sequence.items.size()); ++i) {
    const IssuedItem& item = sequence.items[i];
    if (wanted[item.symbol] == 0) continue;
    --wanted[item.symbol];
    common += item.weight;
  }
  return static_cast<double>(common) / static_cast<double>(typical);
}

}  // namespace pianola::profiling
