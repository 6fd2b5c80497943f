#include <pianola/profile/show/chrome_tracks.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>

namespace pianola::profiling {
namespace {

std::string device_words(std::int32_t device) {
  return device < 0 ? std::string("CPU work") : fmt::format("device {}", device);
}

}  // namespace

Track ChromeTracks::place(std::int32_t process, std::int32_t device, const std::string& group, TimeSpan time) {
  Device& rows = devices_[{process, device}];
  if (rows.process == 0) rows.process = kFirstDevice + static_cast<std::int64_t>(devices_.size()) - 1;
  std::vector<Lane>& lanes = rows.groups[group];
  auto lane = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& one) { return one.end <= time.begin; });
  if (lane == lanes.end()) lane = lanes.insert(lanes.end(), {.thread = ++rows.lanes});
  lane->end = time.end;
  return {rows.process, lane->thread};
}

void ChromeTracks::name(TraceOutput& output) const {
  std::set<std::int32_t> hosts;
  for (const auto& thread : threads_) {
    if (hosts.insert(thread.first).second) {
      output.name_process(host(thread.first), fmt::format("host, process {}", thread.first));
    }
    output.name_thread({host(thread.first), thread.second}, fmt::format("thread {}", thread.second));
  }
  for (const auto& [key, device] : devices_) {
    output.name_process(device.process, fmt::format("{}, process {}", device_words(key.second), key.first));
    for (const auto& [group, lanes] : device.groups) {
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        const std::string suffix = i == 0 ? "" : fmt::format(" ({})", i + 1);
        output.name_thread({device.process, lanes[i].thread}, group + suffix);
      }
    }
  }
}

}  // namespace pianola::profiling
