#include <pianola/profile/analyse/data_loading.hpp>

#include <pianola/profile/analyse/device_work.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <string>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr std::array<std::string_view, 8> kLoading = {"data_load", "data load",  "dataloading", "load_data",
                                                      "load data", "load_batch", "load batch",  "next_batch"};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

bool loads_data(std::string_view name, HostRange::Kind kind) {
  if (contains(name, "DataLoader")) return contains(name, "__next__");  // not all that is done with a loader
  if (kind != HostRange::Kind::annotation) return false;
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::any_of(kLoading, [&](std::string_view word) { return contains(lower, word); });
}

std::vector<TimeSpan> data_loading_times(const Timeline& timeline, std::int32_t process) {
  enum class Known : std::uint8_t { no_answer, no, yes };
  constexpr std::size_t kKinds = 4;
  std::vector<Known> known(kKinds * timeline.names(), Known::no_answer);
  std::vector<TimeSpan> times;
  for (const HostRange& range : timeline.ranges) {
    if (range.process != process) continue;
    Known& answer = known[kKinds * range.name + static_cast<std::size_t>(range.kind)];
    if (answer == Known::no_answer) {
      answer = loads_data(timeline.name(range.name), range.kind) ? Known::yes : Known::no;
    }
    if (answer == Known::yes) times.push_back(range.time);
  }
  return united(std::move(times));
}

}  // namespace pianola::profiling
