#include <pianola/profile/read/chrome_event.hpp>

#include <pianola/profile/call_kind.hpp>
#include <pianola/profile/read/nvtx_name.hpp>
#include <pianola/profile/read/work_origin.hpp>

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <utility>

namespace pianola::profiling {
namespace {

// c10::DeviceType, as a number.
constexpr std::int64_t kCpu = 0, kCuda = 1;

template <class Value, std::size_t size>
using Words = std::array<std::pair<std::string_view, Value>, size>;

template <class Value, std::size_t size>
Value find(const Words<Value, size>& words, std::string_view word, Value otherwise) noexcept {
  for (const auto& [known, value] : words) {
    if (known == word) return value;
  }
  return otherwise;
}

// The names of kineto's activity types, most frequent first; "cpu_work" and those after it are Pianola's own.
constexpr Words<ChromeCategory, 14> kCategories = {{{"python_function", ChromeCategory::python},
                                                    {"cpu_op", ChromeCategory::operation},
                                                    {"cuda_runtime", ChromeCategory::call},
                                                    {"kernel", ChromeCategory::kernel},
                                                    {"cpu_instant_event", ChromeCategory::instant},
                                                    {"cuda_driver", ChromeCategory::call},
                                                    {"gpu_memcpy", ChromeCategory::copy},
                                                    {"gpu_memset", ChromeCategory::memset},
                                                    {"user_annotation", ChromeCategory::annotation},
                                                    {"cpu_work", ChromeCategory::cpu_work},
                                                    {"backward", ChromeCategory::backward},
                                                    {"module", ChromeCategory::module},
                                                    {"nsys_call", ChromeCategory::nsys_call},
                                                    {"nsys_range", ChromeCategory::nsys_range}}};

constexpr Words<ChromeField, 8> kFields = {{{"ph", ChromeField::phase},
                                            {"cat", ChromeField::category},
                                            {"name", ChromeField::name},
                                            {"pid", ChromeField::process},
                                            {"tid", ChromeField::thread},
                                            {"ts", ChromeField::time},
                                            {"dur", ChromeField::duration},
                                            {"args", ChromeField::args}}};

constexpr Words<ChromeField, 13> kArgs = {{{"device", ChromeField::device},
                                           {"stream", ChromeField::stream},
                                           {"correlation", ChromeField::correlation},
                                           {"bytes", ChromeField::bytes},
                                           {"graph id", ChromeField::graph},
                                           {"graph node id", ChromeField::graph_node},
                                           {"process", ChromeField::issuer},
                                           {"Device Type", ChromeField::memory_device_type},
                                           {"Device Id", ChromeField::memory_device},
                                           {"Bytes", ChromeField::memory_bytes},
                                           {"Addr", ChromeField::memory_address},
                                           {"Total Allocated", ChromeField::memory_allocated},
                                           {"Total Reserved", ChromeField::memory_reserved}}};

std::string words_of(const ChromeEvent& event) { return fmt::format("event {}, '{}'", event.number, event.name); }

bool is_work(ChromeCategory category) {
  return category == ChromeCategory::kernel || category == ChromeCategory::copy || category == ChromeCategory::memset ||
         category == ChromeCategory::cpu_work;
}

}  // namespace

ChromeCategory category_of(std::string_view cat) noexcept { return find(kCategories, cat, ChromeCategory::nothing); }

ChromeField field_of(std::string_view key) noexcept { return find(kFields, key, ChromeField::other); }

ChromeField arg_of(std::string_view key) noexcept { return find(kArgs, key, ChromeField::other); }

void ChromeEvent::clear() {
  std::string kept = std::move(name);
  *this = ChromeEvent();
  kept.clear();
  name = std::move(kept);
}

void ChromeEvents::add(const ChromeEvent& event) {
  if (event.category == ChromeCategory::nothing) return;
  if (event.category == ChromeCategory::python && !event.name.starts_with(kModulePrefix)) return;
  if (event.category == ChromeCategory::instant && event.name != kMemoryEvent) return;
  if (event.far) check_.refuse_far(words_of(event));
  if (!is_usable(event)) return leave_out(event);
  switch (event.category) {
    case ChromeCategory::kernel:
      return add_work(event, DeviceWork::Kind::kernel);
    case ChromeCategory::copy:
      return add_work(event, DeviceWork::Kind::copy);
    case ChromeCategory::memset:
      return add_work(event, DeviceWork::Kind::memset);
    case ChromeCategory::cpu_work:
      return add_work(event, DeviceWork::Kind::operation);
    case ChromeCategory::call:
      return add_call(event, event.name);
    case ChromeCategory::nsys_call:
      calls_may_nest_ = true;
      return add_call(event, without_version(event.name));
    case ChromeCategory::nsys_range: {
      const NvtxName range = parse_nvtx_name(event.name);
      return add_range(event, range.name, range.kind);
    }
    case ChromeCategory::annotation:
      return add_range(event, event.name, HostRange::Kind::annotation);
    case ChromeCategory::backward:
      return add_range(event, event.name, HostRange::Kind::backward);
    case ChromeCategory::operation:
      return add_range(
          event, event.name,
          event.name.starts_with(kBackwardPrefix) ? HostRange::Kind::backward : HostRange::Kind::operation);
    case ChromeCategory::python:
    case ChromeCategory::module:
      return add_range(event, event.name, HostRange::Kind::module);
    case ChromeCategory::instant:
      return add_memory(event);
    case ChromeCategory::nothing:
      return;
  }
}

bool ChromeEvents::is_usable(const ChromeEvent& event) {
  if (event.malformed || !event.has_name || !event.time) return false;
  if (event.category == ChromeCategory::instant) {
    return event.process && event.thread && event.memory_device_type && event.memory_bytes && event.memory_address;
  }
  if (!event.duration) return false;
  if (!is_work(event.category)) return event.process && event.thread;
  const std::optional<std::int64_t>& device = event.device ? event.device : event.process;
  return device && std::in_range<std::int32_t>(*device) && (event.stream || event.thread);
}

/// Of an event that is usable.
TimeSpan ChromeEvents::time_of(const ChromeEvent& event) {
  const bool lasts = event.category != ChromeCategory::instant;
  const TimeSpan time{*event.time, *event.time + (lasts ? *event.duration : 0)};
  check_(time, [&event] { return words_of(event); });
  return time;
}

void ChromeEvents::leave_out(const ChromeEvent& event) {
  const bool only_duration =
      event.category != ChromeCategory::instant && !event.malformed && event.has_name && event.time && !event.duration;
  if (only_duration) {
    ++without_duration_;
  } else if (++malformed_ == 1) {
    first_malformed_ = event.name;
  }
}

void ChromeEvents::add_work(const ChromeEvent& event, DeviceWork::Kind kind) {
  timeline_.work.push_back({.time = time_of(event),
                            .name = timeline_.intern(event.name),
                            .kind = kind,
                            .process = event.issuer ? process(*event.issuer) : kUnknownProcess,
                            .device = static_cast<std::int32_t>(event.device ? *event.device : *event.process),
                            .stream = event.stream ? *event.stream : *event.thread,
                            .correlation = event.correlation,
                            .graph = event.graph != 0 ? event.graph : graph_of_node(event.graph_node),
                            .bytes = event.bytes});
}

void ChromeEvents::add_call(const ChromeEvent& event, std::string_view name) {
  timeline_.calls.push_back({.time = time_of(event),
                             .name = timeline_.intern(name),
                             .kind = call_kind(name),
                             .process = process(*event.process),
                             .thread = *event.thread,
                             .correlation = event.correlation});
}

void ChromeEvents::add_range(const ChromeEvent& event, std::string_view name, HostRange::Kind kind) {
  timeline_.ranges.push_back({.time = time_of(event),
                              .name = timeline_.intern(name),
                              .kind = kind,
                              .process = process(*event.process),
                              .thread = *event.thread});
}

void ChromeEvents::add_memory(const ChromeEvent& event) {
  const bool cuda = *event.memory_device_type == kCuda && event.memory_device;
  if (!cuda && *event.memory_device_type != kCpu) return;
  timeline_.memory.push_back({.time = time_of(event).begin,
                              .address = *event.memory_address,
                              .bytes = *event.memory_bytes,
                              .allocated = event.memory_allocated,
                              .reserved = event.memory_reserved,
                              .process = process(*event.process),
                              .device = cuda ? static_cast<std::int32_t>(*event.memory_device) : -1,
                              .thread = *event.thread});
}

std::int32_t ChromeEvents::process(std::int64_t pid) {
  return processes_.emplace(pid, static_cast<std::int32_t>(processes_.size())).first->second;
}

}  // namespace pianola::profiling
