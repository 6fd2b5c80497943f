#include <pianola/profile/read/recording.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/read/nesting.hpp>
#include <pianola/profile/read/recorder_status.hpp>
#include <pianola/profile/read/recording_format.hpp>
#include <pianola/profile/read/recording_reader.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace pianola {
namespace profiling {
namespace {

std::size_t events(const Timeline& timeline) {
  return timeline.work.size() + timeline.calls.size() + timeline.ranges.size();
}

void begin_at_zero(Timeline& timeline) {
  const Nanoseconds begin = timeline.extent().begin;
  const auto move = [begin](auto& list) {
    for (auto& event : list) event.time = {.begin = event.time.begin - begin, .end = event.time.end - begin};
  };
  move(timeline.work);
  move(timeline.calls);
  move(timeline.ranges);
}

// What is the same for one recording and for many: from what readers added to what a timeline promises.
void complete(Timeline& timeline) {
  keep_outer_calls(timeline);
  if (const std::size_t crossing = keep_nested_ranges(timeline); crossing > 0) {
    timeline.notes.push_back(fmt::format(
        "{} ranges overlap others of their thread without lying inside them: they were left out", crossing));
  }
  begin_at_zero(timeline);
  timeline.sort();
}

std::string name_of(const std::map<std::int32_t, std::string>& devices) {
  return devices.empty() ? std::string() : devices.begin()->second;
}

// In the order in which the processes began.
std::vector<RecordingReader> open_all(const std::string& folder, std::vector<std::string>& notes) {
  std::vector<RecordingReader> readers;
  for (const ProcessFile& file : process_files(folder, std::string(kRecordingSuffix))) {
    try {
      readers.emplace_back(file.path);
    } catch (const UsageError& error) {
      notes.push_back(error.diagnosis().what);
    }
  }
  std::stable_sort(readers.begin(), readers.end(), [](const RecordingReader& a, const RecordingReader& b) {
    return a.header().wall < b.header().wall;
  });
  return readers;
}

[[noreturn]] void refuse(const std::string& folder, const std::vector<RecorderStatus>& statuses,
                         const std::vector<std::string>& notes) {
  if (!statuses.empty()) {
    const RecorderStatus& first = statuses.front();
    throw UsageError({.what = fmt::format("process {} could not be recorded: {}", first.process_id, first.problem.what),
                      .where = folder,
                      .fix = first.problem.fix});
  }
  throw UsageError({.what = notes.empty() ? fmt::format("there is no recording in the folder '{}'", folder) : notes[0],
                    .fix = "give a folder that `pianola profile --output` wrote"});
}

}  // namespace
}  // namespace profiling

Timeline read_recording(const std::string& path) {
  profiling::RecordingReader reader(path);
  Timeline timeline;
  reader.read_into(timeline, 0);
  timeline.source = fmt::format("recording of process {}", reader.header().process_id);
  timeline.device_name = profiling::name_of(reader.devices());
  timeline.notes = reader.notes();
  profiling::complete(timeline);
  return timeline;
}

Timeline read_recordings(const std::string& folder) {
  Timeline timeline;
  std::vector<profiling::RecordingReader> readers = profiling::open_all(folder, timeline.notes);
  const std::vector<profiling::RecorderStatus> statuses = profiling::read_statuses(folder);
  if (readers.empty()) profiling::refuse(folder, statuses, timeline.notes);

  std::int32_t processes = 0;
  std::vector<std::string> of_idle;  // what ends without any work is of interest only where nothing did work
  for (profiling::RecordingReader& reader : readers) {
    const std::size_t before = profiling::events(timeline);
    reader.read_into(timeline, processes);
    const bool is_idle = profiling::events(timeline) == before;
    if (!is_idle) ++processes;
    if (timeline.device_name.empty()) timeline.device_name = profiling::name_of(reader.devices());
    for (const std::string& note : reader.notes()) {
      (is_idle ? of_idle : timeline.notes).push_back(fmt::format("process {}: {}", reader.header().process_id, note));
    }
  }
  if (processes == 0) timeline.notes.insert(timeline.notes.end(), of_idle.begin(), of_idle.end());
  for (const profiling::RecorderStatus& status : statuses) {
    timeline.notes.push_back(fmt::format("process {}: {}", status.process_id, status.problem.what));
  }
  timeline.source = fmt::format("recordings of {} process{} in '{}'", processes, processes == 1 ? "" : "es", folder);
  profiling::complete(timeline);
  return timeline;
}

}  // namespace pianola
