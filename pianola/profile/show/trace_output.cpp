#include <pianola/profile/show/trace_output.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/read/chrome_document.hpp>
#include <pianola/profile/read/microseconds.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <iterator>
#include <system_error>

namespace pianola::profiling {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 16;

[[noreturn]] void refuse(const std::filesystem::path& file) {
  throw UsageError({.what = fmt::format("the trace '{}' cannot be written: {}", file.string(),
                                        std::generic_category().message(errno != 0 ? errno : EIO)),
                    .fix = "name a file in a folder that exists, may be written to and has room"});
}

// The name is that of the first.
std::string device_properties(const Timeline& of) {
  const std::string name = of.device_name.empty() ? "" : fmt::format(R"(, "name": {})", json_string(of.device_name));
  if (of.devices.empty()) return name.empty() ? "" : fmt::format(R"({{"id": 0{}}})", name);
  std::string all;
  for (const MemoryOfDevice& device : of.devices) {
    const std::string total = device.total == 0 ? "" : fmt::format(R"(, "totalGlobalMem": {})", device.total);
    all += fmt::format(R"({}{{"id": {}{}{}}})", all.empty() ? "" : ", ", device.device, all.empty() ? name : "", total);
  }
  return all;
}

// Of one device: profile() looks at one.
std::string memory_left_of(const Timeline& of) {
  for (const MemoryOfDevice& device : of.devices) {
    if (!device.left) continue;
    return fmt::format("\"{}\": {},\n", kMemoryLeftKey, memory_left_text(device.device, *device.left));
  }
  return "";
}

}  // namespace

std::string json_string(std::string_view text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

TraceOutput::TraceOutput(const std::filesystem::path& file, const Timeline& of, Nanoseconds origin)
    : file_(file), origin_(origin) {
  errno = 0;
  sink_ = TraceSink::open(file);
  if (!sink_->is_open()) refuse(file);
  const std::string unrecorded = of.unrecorded == 0 ? "" : fmt::format("\"{}\": {},\n", kUnrecordedKey, of.unrecorded);
  pending_ = fmt::format(
      "{{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": {},\n"
      "\"deviceProperties\": [{}],\n{}{}\"traceEvents\": [",
      origin, device_properties(of), unrecorded, memory_left_of(of));
}

void TraceOutput::event(Track track, std::string_view category, std::string_view name, TimeSpan time,
                        std::string_view args) {
  begin_event();
  fmt::format_to(std::back_inserter(pending_),
                 R"({{"ph": "X", "cat": "{}", "name": {}, "pid": {}, "tid": {}, "ts": {}, "dur": {})", category, name,
                 track.process, track.thread, to_microseconds(time.begin - origin_), to_microseconds(time.duration()));
  if (!args.empty()) fmt::format_to(std::back_inserter(pending_), R"(, "args": {{{}}})", args);
  pending_ += '}';
}

void TraceOutput::instant(Track track, std::string_view category, std::string_view name, Nanoseconds time,
                          std::string_view args) {
  begin_event();
  fmt::format_to(std::back_inserter(pending_),
                 R"({{"ph": "i", "s": "t", "cat": "{}", "name": {}, "pid": {}, "tid": {}, "ts": {}, "args": {{{}}}}})",
                 category, name, track.process, track.thread, to_microseconds(time - origin_), args);
}

void TraceOutput::counter(std::int64_t process, std::string_view name, Nanoseconds time, std::string_view series,
                          std::uint64_t value) {
  begin_event();
  fmt::format_to(std::back_inserter(pending_),
                 R"({{"ph": "C", "cat": "counter", "name": {}, "pid": {}, "ts": {}, "args": {{"{}": {}}}}})", name,
                 process, to_microseconds(time - origin_), series, value);
}

void TraceOutput::arrow(Track from, Nanoseconds begin, Track to, Nanoseconds end) {
  // An id of its own for each: the ends of an id that has several are dropped by viewers.
  ++arrows_;
  begin_event();
  fmt::format_to(std::back_inserter(pending_),
                 R"({{"ph": "s", "id": {}, "cat": "issues", "name": "issues", "pid": {}, "tid": {}, "ts": {}}})",
                 arrows_, from.process, from.thread, to_microseconds(begin - origin_));
  begin_event();
  fmt::format_to(
      std::back_inserter(pending_),
      R"({{"ph": "f", "bp": "e", "id": {}, "cat": "issues", "name": "issues", "pid": {}, "tid": {}, "ts": {}}})",
      arrows_, to.process, to.thread, to_microseconds(end - origin_));
}

void TraceOutput::name_process(std::int64_t process, std::string_view name) {
  metadata("process_name", {process, 0}, fmt::format(R"("name": {})", json_string(name)));
  metadata("process_sort_index", {process, 0}, fmt::format(R"("sort_index": {})", sort_index_++));
}

void TraceOutput::name_thread(Track track, std::string_view name) {
  metadata("thread_name", track, fmt::format(R"("name": {})", json_string(name)));
  metadata("thread_sort_index", track, fmt::format(R"("sort_index": {})", sort_index_++));
}

void TraceOutput::metadata(std::string_view what, Track track, std::string_view args) {
  begin_event();
  fmt::format_to(std::back_inserter(pending_), R"({{"ph": "M", "name": "{}", "pid": {}, "tid": {}, "args": {{{}}}}})",
                 what, track.process, track.thread, args);
}

void TraceOutput::begin_event() {
  if (pending_.size() >= kPiece) write();
  pending_ += events_++ == 0 ? "\n" : ",\n";
}

void TraceOutput::write() {
  errno = 0;
  if (!sink_->write(pending_)) refuse(file_);
  pending_.clear();
}

void TraceOutput::finish() {
  pending_ += "\n]}\n";
  write();
  errno = 0;
  if (!sink_->close()) refuse(file_);
}

}  // namespace pianola::profiling
