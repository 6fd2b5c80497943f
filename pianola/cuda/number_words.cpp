#include <pianola/cuda/number_words.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <unordered_map>
#include <utility>

namespace pianola {
namespace {

constexpr double kLeast = 1e-30, kMost = 1e30;                  // its inverse is a float, too
constexpr double kLeastInteger = 4, kMostInteger = 16'777'216;  // 2^24: each is a float
constexpr std::array kTreatedApart = {0.5, 1.0, 2.0, 3.0};      // exponents, norms, factors
constexpr double kMostHalf = 65'504;
constexpr std::uint64_t kAttempts = 64;

std::uint64_t low_bits(unsigned bytes) {
  return bytes == sizeof(std::uint64_t) ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * bytes) - 1;
}

// Of [0, 1), another one for each: a step of splitmix64, from Steele et al., Fast Splittable Pseudorandom Number Generators (2014).
double spread(std::uint64_t of) {
  of += 0x9e37'79b9'7f4a'7c15;
  of = (of ^ of >> 30) * 0xbf58'476d'1ce4'e5b9;
  of = (of ^ of >> 27) * 0x94d0'49bb'1331'11eb;
  return static_cast<double>((of ^ of >> 31) >> 11) * 0x1p-53;
}

}  // namespace

Numeral Numeral::of(double value) noexcept {
  return {.value = value, .kind = Kind::real, .bits = std::bit_cast<std::int64_t>(value)};
}

Numeral Numeral::of(std::int64_t value) noexcept {
  return {.value = static_cast<double>(value), .kind = Kind::integer, .bits = value};
}

bool is_ordinary(const Numeral& numeral) {
  if (numeral.kind == Numeral::Kind::integer) return numeral.value >= kLeastInteger && numeral.value < kMostInteger;
  if (numeral.kind != Numeral::Kind::real) return false;
  const double size = std::abs(numeral.value);
  return size >= kLeast && size <= kMost &&
         std::find(kTreatedApart.begin(), kTreatedApart.end(), size) == kTreatedApart.end();
}

std::uint64_t unfilled_slots(std::uint64_t one, std::uint64_t other) {
  const std::uint64_t bits = one ^ other, low = low_bits(4);
  return ((bits & low) != 0 ? low : 0) | ((bits & ~low) != 0 ? ~low : 0);
}

// --- Forms of a number ---

unsigned NumberWords::bytes_of(Form form) {
  switch (form) {
    case Form::real64:
    case Form::negated64:
    case Form::inverse64:
      return 8;
    case Form::half:
    case Form::bfloat16:
      return 2;
    default:
      return 4;
  }
}

std::uint64_t NumberWords::bits_of(Form form, double value) {
  const auto single = static_cast<float>(value);
  switch (form) {
    case Form::real32:
      return std::bit_cast<std::uint32_t>(single);
    case Form::real64:
      return std::bit_cast<std::uint64_t>(value);
    case Form::negated32:
      return std::bit_cast<std::uint32_t>(-single);
    case Form::negated64:
      return std::bit_cast<std::uint64_t>(-value);
    case Form::inverse32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(1 / value));
    case Form::inverse_of_32:
      return std::bit_cast<std::uint32_t>(1 / single);
    case Form::inverse64:
      return std::bit_cast<std::uint64_t>(1 / value);
    case Form::integer32:
      return static_cast<std::uint32_t>(static_cast<std::int64_t>(value));
    case Form::half:
      return static_cast<__half_raw>(__float2half_rn(single)).x;
    case Form::bfloat16:
      return static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(single)).x;
  }
  return 0;
}

std::uint64_t NumberWords::mask_of(const Slot& slot) { return low_bits(slot.bytes) << slot.shift; }

// --- Trials ---

std::vector<Numeral> NumberWords::trial(std::span<const Numeral> numbers, const std::vector<bool>& varies,
                                        unsigned round) {
  std::vector<Numeral> others(numbers.begin(), numbers.end());
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (!varies[i]) continue;
    const Numeral& number = numbers[i];
    // Another one where it tells two forms apart that differ by their rounding alone.
    for (std::uint64_t attempt = 0; attempt < kAttempts; ++attempt) {
      const double at = spread((i * kAttempts + attempt) * 16 + round);
      others[i] = number.kind == Numeral::Kind::integer ? Numeral::of(1000 + static_cast<std::int64_t>(at * 28'000))
                                                        : Numeral::of(number.value * (0.5 + at));
      const bool tells_apart =
          bits_of(Form::inverse32, others[i].value) != bits_of(Form::inverse_of_32, others[i].value);
      if (is_ordinary(others[i]) && (tells_apart || number.kind == Numeral::Kind::integer)) break;
    }
  }
  return others;
}

// Finds the slots of trial captures.
class NumberWords::Finder {
 public:
  Finder(std::span<const Capture> trials, std::span<const NodeChange> again, const std::vector<bool>& varies)
      : trials_(trials), again_(again) {
    constexpr std::array kForms = {Form::real32,    Form::real64,        Form::negated32, Form::negated64,
                                   Form::inverse32, Form::inverse_of_32, Form::inverse64, Form::integer32,
                                   Form::half,      Form::bfloat16};
    const std::vector<Numeral>& numbers = trials.front().numbers;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (!varies[i]) continue;
      for (const Form form : kForms) {
        if (form == Form::integer32 && numbers[i].kind != Numeral::Kind::integer) continue;
        holders_.emplace(Key{bits_of(form, numbers[i].value), bytes_of(form)}, Candidate{.number = i, .form = form});
      }
    }
  }

  // False: it cannot be told what is in this word.
  bool look_at(std::size_t node, std::size_t index, std::vector<Slot>& slots) const {
    const std::uint64_t unfilled = unfilled_slots(trials_.front().changes[node].word(index), again_[node].word(index));
    const std::uint64_t open = differences(node, index) & ~unfilled;
    return open == 0 || explain({.node = node, .index = index, .shift = 0, .bytes = 8, .candidates = {}}, open, slots);
  }

 private:
  struct Key {
    std::uint64_t bits;
    unsigned bytes;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const { return std::hash<std::uint64_t>()(key.bits * 31 + key.bytes); }
  };

  std::uint64_t differences(std::size_t node, std::size_t index) const {
    std::uint64_t bits = 0;
    for (const Capture& trial : trials_) {
      bits |= trial.changes[node].word(index) ^ trials_.front().changes[node].word(index);
    }
    return bits;
  }

  // One number, or a number in each half.
  bool explain(Slot slot, std::uint64_t open, std::vector<Slot>& slots) const {
    if ((open & mask_of(slot)) == 0) return true;
    const auto [first, last] = holders_.equal_range({held(trials_.front(), slot), slot.bytes});
    for (auto holder = first; holder != last; ++holder) {
      const Candidate& candidate = holder->second;
      const bool always = std::all_of(trials_.begin(), trials_.end(), [&](const Capture& trial) {
        return bits_of(candidate.form, trial.numbers[candidate.number].value) == held(trial, slot);
      });
      if (always) slot.candidates.push_back(candidate);
    }
    if (!slot.candidates.empty()) {
      slots.push_back(std::move(slot));
      return true;
    }
    if (slot.bytes == 2) return false;
    Slot low = slot, high = slot;
    low.bytes = high.bytes = slot.bytes / 2;
    high.shift += 8 * high.bytes;
    return explain(std::move(low), open, slots) && explain(std::move(high), open, slots);
  }

  static std::uint64_t held(const Capture& trial, const Slot& slot) {
    return (trial.changes[slot.node].word(slot.index) & mask_of(slot)) >> slot.shift;
  }

  std::span<const Capture> trials_;
  std::span<const NodeChange> again_;
  std::unordered_multimap<Key, Candidate, Hash> holders_;
};

std::optional<NumberWords> NumberWords::find(std::vector<Capture> trials, std::span<const NodeChange> again,
                                             std::vector<bool> varies) {
  const std::vector<NodeChange>& first = trials.front().changes;
  const auto does_the_same = [&](std::span<const NodeChange> changes) {
    return std::equal(changes.begin(), changes.end(), first.begin(), first.end(),
                      [](const NodeChange& a, const NodeChange& b) { return a.does_as(b); });
  };
  for (const Capture& trial : trials) {
    if (!does_the_same(trial.changes)) return std::nullopt;
  }
  if (!does_the_same(again)) return std::nullopt;
  NumberWords words;
  const Finder finder(trials, again, varies);
  for (std::size_t node = 0; node < first.size(); ++node) {
    words.masks_.emplace_back(first[node].words());
    for (std::size_t index = 0; index < first[node].words(); ++index) {
      if (!finder.look_at(node, index, words.slots_)) return std::nullopt;
    }
  }
  std::vector<bool> held(varies.size());
  for (const Slot& slot : words.slots_) {
    words.masks_[slot.node][slot.index] |= mask_of(slot);
    for (const Candidate& candidate : slot.candidates) held[candidate.number] = true;
  }
  // What becomes of a number that no word holds nobody knows.
  if (held != varies) return std::nullopt;
  words.like_ = std::move(trials.front().changes);
  words.numbers_ = std::move(trials.front().numbers);
  words.varies_ = std::move(varies);
  return words;
}

// --- Calls ---

bool NumberWords::are_alike(std::span<const Numeral> numbers) const {
  if (numbers.size() != numbers_.size()) return false;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Numeral &one = numbers[i], &known = numbers_[i];
    const bool is_alike =
        varies_[i] ? one.kind == known.kind && is_ordinary(one) && (one.value < 0) == (known.value < 0) : one == known;
    if (!is_alike) return false;
  }
  return true;
}

// Nothing: its number has no such form, or forms that were always the same differ now.
std::optional<std::uint64_t> NumberWords::held_by(const Slot& slot, std::span<const Numeral> numbers) {
  std::optional<std::uint64_t> held;
  for (const auto& [number, form] : slot.candidates) {
    if (form == Form::half && std::abs(numbers[number].value) > kMostHalf) return std::nullopt;
    const std::uint64_t bits = bits_of(form, numbers[number].value);
    if (held && *held != bits) return std::nullopt;
    held = bits;
  }
  return held;
}

bool NumberWords::fits(std::span<const NodeChange> changes, std::span<const Numeral> numbers) const {
  if (!are_alike(numbers) || changes.size() != like_.size()) return false;
  for (std::size_t node = 0; node < changes.size(); ++node) {
    if (!changes[node].does_as(like_[node])) return false;
  }
  return std::all_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return (changes[slot.node].word(slot.index) & mask_of(slot)) >> slot.shift == held_by(slot, numbers);
  });
}

bool NumberWords::follow(std::span<NodeChange> changes, std::span<const Numeral> numbers) const {
  if (!are_alike(numbers)) return false;
  for (const Slot& slot : slots_) {
    const auto held = held_by(slot, numbers);
    if (!held) return false;
    NodeChange& change = changes[slot.node];
    change.set_word(slot.index, (change.word(slot.index) & ~mask_of(slot)) | *held << slot.shift);
  }
  return true;
}

}  // namespace pianola
