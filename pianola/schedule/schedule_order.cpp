#include <pianola/schedule/schedule_order.hpp>

#include <pianola/core/display_width.hpp>
#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

namespace pianola::detail {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kHowToWrite =
    "write c for the forward and -c for the backward of chunk c, from 1 on; -c-0.5 for delayed gradients of its "
    "weights";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string_view without_brackets(std::string_view text) {
  text = trimmed(text);
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return text;
  return trimmed(text.substr(1, text.size() - 2));
}

std::optional<double> number(std::string_view token) {
  if (token.starts_with("+") && !token.starts_with("+-")) token.remove_prefix(1);  // from_chars takes a minus only
  double value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value, std::chars_format::fixed);
  if (error != std::errc() || end != token.data() + token.size()) return std::nullopt;
  return value;
}

double parse_entry(std::string_view token, std::size_t index, std::size_t entries) {
  if (const auto value = number(token)) return *value;
  throw ScheduleError({.what = token.empty() ? "an entry of the schedule is empty"
                                             : fmt::format("'{}' is not a number", shorten(one_line(token), 40)),
                       .where = entry_place(index, entries),
                       .fix = "separate whole numbers by commas, as in 1,2,-2,-1"});
}

bool is_delayed_weight_gradient(double entry) {
  return entry < -1 && std::trunc(entry) - entry == 0.5;  // the half is exact in binary
}

struct Entry {
  Direction direction = Direction::forward;
  int chunk = 1;
};

Entry entry_of(double value, std::size_t index, std::size_t entries) {
  const double chunk = std::abs(std::trunc(value));
  const bool is_whole = std::trunc(value) == value;
  if (chunk >= 1 && chunk <= std::numeric_limits<int>::max() && (is_whole || is_delayed_weight_gradient(value))) {
    const Direction back = is_whole ? Direction::backward : Direction::weight_gradients;
    return {value > 0 ? Direction::forward : back, static_cast<int>(chunk)};
  }
  throw ScheduleError({.what = fmt::format("an entry must be the number of a chunk, got {}", value),
                       .where = entry_place(index, entries),
                       .fix = std::string(kHowToWrite)});
}

std::vector<Entry> entries_of(std::span<const double> order) {
  std::vector<Entry> entries;
  entries.reserve(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) entries.push_back(entry_of(order[i], i, order.size()));
  return entries;
}

// What passes has the chunks 1 to some number that is at most that of the entries: they can index a vector.
void refuse_gaps(std::span<const Entry> order) {
  std::vector<int> chunks;
  for (const Entry& entry : order) chunks.push_back(entry.chunk);
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  for (int missing = 1; const int chunk : chunks) {
    if (chunk != missing) {
      const auto at =
          std::find_if(order.begin(), order.end(), [&](const Entry& entry) { return entry.chunk == chunk; });
      throw ScheduleError({.what = fmt::format("chunk {} is missing, but chunk {} occurs", missing, chunk),
                           .where = entry_place(static_cast<std::size_t>(at - order.begin()), order.size()),
                           .fix = "number the chunks of this rank 1, 2, 3 ... without gaps"});
    }
    ++missing;
  }
}

struct Counts {
  int forwards = 0;
  int backwards = 0;
  int weights = 0;  // delayed gradients of weights
};

std::string counted(int number, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", number, number == 1 ? one : many);
}

[[noreturn]] void refuse_backward(int chunk, const Counts& counts, std::string place) {
  std::string what = counts.forwards == 0
                         ? fmt::format("{} is a backward of chunk {} before its first forward", -chunk, chunk)
                         : fmt::format(
                               "{} is a backward of chunk {}, of which no microbatch is in flight: it had {} "
                               "and as many backwards",
                               -chunk, chunk, counted(counts.forwards, "forward", "forwards"));
  throw ScheduleError({.what = std::move(what),
                       .where = std::move(place),
                       .fix = fmt::format("put the forward, {}, before it", chunk)});
}

[[noreturn]] void refuse_weights(int chunk, const Counts& counts, std::string place) {
  throw ScheduleError(
      {.what = fmt::format("-{}.5 stands for weight gradients of chunk {} that no backward has left to do: it had {}{}",
                           chunk, chunk, counted(counts.backwards, "backward", "backwards"),
                           counts.backwards == 0 ? "" : " and as many weight gradients"),
       .where = std::move(place),
       .fix = fmt::format("put the backward, {}, before it", -chunk)});
}

ScheduleStep next_step(const Entry& entry, Counts& counts, std::size_t index, std::size_t entries) {
  switch (entry.direction) {
    case Direction::forward:
      return {entry.direction, entry.chunk, ++counts.forwards};
    case Direction::backward:
      if (counts.backwards == counts.forwards) refuse_backward(entry.chunk, counts, entry_place(index, entries));
      return {entry.direction, entry.chunk, ++counts.backwards};
    case Direction::weight_gradients:
      if (counts.weights == counts.backwards) refuse_weights(entry.chunk, counts, entry_place(index, entries));
      return {entry.direction, entry.chunk, ++counts.weights};
  }
  return {};
}

[[noreturn]] void refuse_step(std::span<const ScheduleStep> steps, const ScheduleStep& step, std::string what,
                              std::string fix) {
  const auto at = std::find(steps.begin(), steps.end(), step);
  const std::string place = entry_place(static_cast<std::size_t>(at - steps.begin()), steps.size());
  throw ScheduleError(
      {.what = std::move(what), .where = fmt::format("{}, {}", place, describe(step)), .fix = std::move(fix)});
}

void refuse_missing_backwards(std::span<const ScheduleStep> steps, const std::vector<Counts>& counts) {
  for (int chunk = 1; const auto& [forwards, backwards, weights] : counts) {
    if (forwards != backwards) {
      refuse_step(steps, {Direction::forward, chunk, backwards + 1},
                  fmt::format("chunk {} has {} but {}", chunk, counted(forwards, "forward", "forwards"),
                              counted(backwards, "backward", "backwards")),
                  fmt::format("add {} after it, {}", -chunk, counted(forwards - backwards, "time", "times")));
    }
    if (weights != 0 && weights != backwards) {
      refuse_step(steps, {Direction::backward, chunk, weights + 1},
                  fmt::format("chunk {} has {} but {} of weights", chunk, counted(backwards, "backward", "backwards"),
                              counted(weights, "gradient", "gradients")),
                  fmt::format("add -{}.5 after it, {}: all microbatches of a chunk delay them, or none", chunk,
                              counted(backwards - weights, "time", "times")));
    }
    ++chunk;
  }
}

void refuse_unequal_chunks(std::span<const ScheduleStep> steps, const std::vector<Counts>& counts) {
  const int first = counts.front().forwards;
  for (int chunk = 1; const auto& [forwards, backwards, weights] : counts) {
    if (forwards != first) {
      const ScheduleStep surplus = {Direction::forward, forwards > first ? chunk : 1, std::min(forwards, first) + 1};
      refuse_step(steps, surplus,
                  fmt::format("chunk 1 has {}, but chunk {} has {}", counted(first, "microbatch", "microbatches"),
                              chunk, forwards),
                  "send every microbatch through every chunk");
    }
    ++chunk;
  }
}

}  // namespace

std::string entry_place(std::size_t index, std::size_t entries) {
  return fmt::format("entry {} of {}", index + 1, entries);
}

std::vector<double> parse_entries(std::string_view text) {
  text = without_brackets(text);
  if (text.empty()) return {};
  const auto entries = static_cast<std::size_t>(std::count(text.begin(), text.end(), ',')) + 1;
  std::vector<double> values;
  values.reserve(entries);
  for (std::size_t index = 0; index < entries; ++index) {
    const std::size_t comma = text.find(',');
    values.push_back(parse_entry(trimmed(text.substr(0, comma)), index, entries));
    if (comma != text.npos) text.remove_prefix(comma + 1);
  }
  return values;
}

std::vector<ScheduleStep> checked_steps(std::span<const double> order) {
  if (order.empty()) {
    throw ScheduleError({.what = "the schedule has no entries", .fix = std::string(kHowToWrite)});
  }
  const std::vector<Entry> entries = entries_of(order);
  refuse_gaps(entries);
  const auto farthest = std::max_element(entries.begin(), entries.end(),
                                         [](const Entry& a, const Entry& b) { return a.chunk < b.chunk; });
  std::vector<Counts> counts(static_cast<std::size_t>(farthest->chunk));
  std::vector<ScheduleStep> steps;
  steps.reserve(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    steps.push_back(next_step(entries[i], counts[static_cast<std::size_t>(entries[i].chunk) - 1], i, order.size()));
  }
  refuse_missing_backwards(steps, counts);
  refuse_unequal_chunks(steps, counts);
  return steps;
}

}  // namespace pianola::detail
