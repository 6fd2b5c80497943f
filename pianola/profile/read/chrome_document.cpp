#include <pianola/profile/read/chrome_document.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/read/chrome_event.hpp>
#include <pianola/profile/read/microseconds.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace pianola::profiling {
namespace {

constexpr std::string_view kBaseKey = "baseTimeNanoseconds";
constexpr int kNumberTooLarge = 406;     // Nlohmann's number of that error: "1e400".
constexpr std::int64_t kDeepest = 1000;  // Traces nest 5 deep.

template <class Integer>
bool is_within(Integer value, Nanoseconds limit) {
  return std::cmp_less_equal(value, limit) && std::cmp_greater_equal(value, -limit);
}

/// Follows nlohmann's parser through the text. Containers are counted, not kept; of each event the fields that matter.
class DocumentReader {
 public:
  DocumentReader(Timeline& timeline, ChromeDocument& document)
      : timeline_(timeline), document_(document), sink_(timeline) {}

  void finish() {
    sink_.finish(base_);
    note_memory_left();
  }

  bool null() { return wrong_type(); }
  bool boolean(bool /*value*/) { return wrong_type(); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return wrong_type(); }
  bool number_integer(std::int64_t value) { return integer(value); }
  bool number_unsigned(std::uint64_t value) { return integer(value); }
  bool number_float(double value, const std::string& text);
  bool string(const std::string& text);
  bool key(const std::string& text);
  bool start_object(std::size_t /*size*/);
  bool end_object();
  bool start_array(std::size_t /*size*/);
  bool end_array();
  bool parse_error(std::size_t position, const std::string& last_token, const nlohmann::json::exception& error);

 private:
  enum class Section : std::uint8_t { other, events, devices, base, unrecorded, memory_left, source, notes };
  enum class DeviceField : std::uint8_t { other, id, name, memory };

  bool in_event() const { return depth_ > event_list_depth_ && event_list_depth_ != 0; }
  void open() {
    document_.begins = true;
    if (++depth_ > kDeepest) refuse_deep();
  }
  [[noreturn]] void refuse_deep() const;

  template <class Integer>
  Nanoseconds checked_time(Integer value, std::string_view key) const;
  template <class Integer>
  bool integer(Integer value);
  template <class Integer>
  void set(Integer value);
  template <class Integer>
  void set_of_device(Integer value);
  void note_memory_left();
  bool wrong_type();

  Timeline& timeline_;
  ChromeDocument& document_;
  ChromeEvents sink_;
  Nanoseconds base_ = 0;

  std::int64_t depth_ = 0;             // Containers open.
  std::int64_t event_list_depth_ = 0;  // As many are open inside the list of events; 0: outside.
  std::size_t objects_ = 0;            // In that list so far.
  Section section_ = Section::other;
  DeviceField device_field_ = DeviceField::other;
  std::vector<std::int64_t> memory_left_;  // Of kMemoryLeftKey.
  bool in_args_ = false;
  bool skip_ = false;  // Nothing else of this event matters.
  ChromeField field_ = ChromeField::other;
  ChromeEvent event_;
};

bool DocumentReader::start_object(std::size_t /*size*/) {
  if (event_list_depth_ != 0 && depth_ == event_list_depth_) {
    event_.clear();
    event_.number = ++objects_;
    skip_ = in_args_ = false;
  } else if (depth_ == 2 && section_ == Section::devices) {
    timeline_.devices.push_back({.device = static_cast<std::int32_t>(timeline_.devices.size())});
  } else if (in_event()) {
    const bool args = field_ == ChromeField::args && depth_ == event_list_depth_ + 1;
    if (args) {
      in_args_ = true;
    } else {
      (void)wrong_type();
    }
  }
  field_ = ChromeField::other;
  open();
  return true;
}

bool DocumentReader::end_object() {
  --depth_;
  if (event_list_depth_ == 0) return true;
  if (depth_ == event_list_depth_ + 1) in_args_ = false;
  if (depth_ != event_list_depth_) return true;
  if (event_.has_phase || skip_) ++document_.events;
  if (!skip_) sink_.add(event_);
  return true;
}

bool DocumentReader::start_array(std::size_t /*size*/) {
  if (in_event()) (void)wrong_type();
  open();
  const bool list = depth_ == 1 || (depth_ == 2 && section_ == Section::events);
  if (event_list_depth_ == 0 && list) {
    event_list_depth_ = depth_;
    document_.has_events = true;
  }
  return true;
}

bool DocumentReader::end_array() {
  if (depth_ == event_list_depth_) event_list_depth_ = 0;
  --depth_;
  return true;
}

bool DocumentReader::key(const std::string& text) {
  field_ = ChromeField::other;
  device_field_ = DeviceField::other;
  if (in_event()) {
    if (skip_) return true;
    if (depth_ == event_list_depth_ + 1) field_ = field_of(text);
    if (depth_ == event_list_depth_ + 2 && in_args_) field_ = arg_of(text);
  } else if (depth_ == 1) {
    section_ = text == "traceEvents"        ? Section::events
               : text == "deviceProperties" ? Section::devices
               : text == kBaseKey           ? Section::base
               : text == kUnrecordedKey     ? Section::unrecorded
               : text == kMemoryLeftKey     ? Section::memory_left
               : text == kSourceKey         ? Section::source
               : text == kNotesKey          ? Section::notes
                                            : Section::other;
  } else if (section_ == Section::devices && depth_ == 3) {
    device_field_ = text == "id"               ? DeviceField::id
                    : text == "name"           ? DeviceField::name
                    : text == "totalGlobalMem" ? DeviceField::memory
                                               : DeviceField::other;
  }
  return true;
}

bool DocumentReader::string(const std::string& text) {
  if (device_field_ == DeviceField::name && timeline_.device_name.empty()) timeline_.device_name = text;
  device_field_ = DeviceField::other;
  if (depth_ == 1 && section_ == Section::source) timeline_.source = text;
  if (depth_ == 2 && section_ == Section::notes) document_.notes.push_back(text);
  if (field_ == ChromeField::name) {
    event_.name = text;
    event_.has_name = true;
  } else if (field_ == ChromeField::category) {
    event_.category = category_of(text);
    skip_ = event_.category == ChromeCategory::nothing;
  } else if (field_ == ChromeField::phase) {
    event_.has_phase = true;
  } else {
    return wrong_type();
  }
  field_ = ChromeField::other;
  return true;
}

bool DocumentReader::number_float(double /*value*/, const std::string& text) {
  if (field_ != ChromeField::time && field_ != ChromeField::duration) return wrong_type();
  const std::optional<Nanoseconds> time = parse_microseconds(text);
  (field_ == ChromeField::time ? event_.time : event_.duration) = time;
  event_.far = event_.far || !time;  // It is a number.
  field_ = ChromeField::other;
  return true;
}

template <class Integer>
Nanoseconds DocumentReader::checked_time(Integer value, std::string_view key) const {
  if (!is_within(value, kFurthestTime)) {
    TimeCheck("the " + timeline_.source).refuse_far(fmt::format("\"{}\": {}", key, value));
  }
  return static_cast<Nanoseconds>(value);
}

template <class Integer>
bool DocumentReader::integer(Integer value) {
  if (depth_ == 1 && section_ == Section::base) base_ = checked_time(value, kBaseKey);
  if (depth_ == 1 && section_ == Section::unrecorded && value > 0) {
    timeline_.unrecorded = checked_time(value, kUnrecordedKey);
    TimeCheck("the " + timeline_.source)({0, timeline_.unrecorded}, [] { return std::string(kUnrecordedKey); });
  }
  if (depth_ == 2 && section_ == Section::memory_left && is_within(value, kMostBytes)) {
    memory_left_.push_back(static_cast<std::int64_t>(value));
  }
  if (device_field_ != DeviceField::other && !timeline_.devices.empty()) set_of_device(value);
  device_field_ = DeviceField::other;
  if (field_ != ChromeField::other) set(value);
  field_ = ChromeField::other;
  return true;
}

template <class Integer>
void DocumentReader::set_of_device(Integer value) {
  MemoryOfDevice& device = timeline_.devices.back();
  if (device_field_ == DeviceField::id && std::in_range<std::int32_t>(value)) {
    device.device = static_cast<std::int32_t>(value);
  } else if (device_field_ == DeviceField::memory && value >= 0 && is_within(value, kMostBytes)) {
    device.total = static_cast<std::uint64_t>(value);
  }
}

// What is no such list tells nothing.
void DocumentReader::note_memory_left() {
  const bool is_told = memory_left_.size() == 4 && std::in_range<std::int32_t>(memory_left_[0]) &&
                       std::ranges::all_of(memory_left_, [](std::int64_t value) { return value >= 0; });
  if (!is_told) return;
  const auto bytes = [&](std::size_t i) { return static_cast<std::uint64_t>(memory_left_[i]); };
  const auto number = static_cast<std::int32_t>(memory_left_[0]);
  auto device = std::ranges::find(timeline_.devices, number, &MemoryOfDevice::device);
  if (device == timeline_.devices.end()) {
    device = timeline_.devices.insert(timeline_.devices.end(), MemoryOfDevice{.device = number});
  }
  device->left = {.of_driver = bytes(1), .cached = bytes(2), .returnable = bytes(3)};
}

template <class Integer>
void DocumentReader::set(Integer value) {
  const auto number = static_cast<std::int64_t>(value);
  const auto count = static_cast<std::uint64_t>(value);
  const bool is_time = field_ == ChromeField::time || field_ == ChromeField::duration;
  const bool is_count = field_ == ChromeField::correlation || field_ == ChromeField::bytes ||
                        field_ == ChromeField::graph || field_ == ChromeField::graph_node ||
                        field_ == ChromeField::memory_address || field_ == ChromeField::memory_allocated ||
                        field_ == ChromeField::memory_reserved;
  const bool is_device = field_ == ChromeField::device || field_ == ChromeField::memory_device;
  if (is_time && !is_within(value, kFurthestTime / 1000)) {
    event_.far = true;
    return;
  }
  const bool is_size = field_ == ChromeField::bytes || field_ == ChromeField::memory_bytes ||
                       field_ == ChromeField::memory_allocated || field_ == ChromeField::memory_reserved;
  if ((is_count && std::cmp_less(value, 0)) || (is_device && !std::in_range<std::int32_t>(value)) ||
      (is_size && !is_within(value, kMostBytes))) {
    (void)wrong_type();
    return;
  }
  switch (field_) {
    case ChromeField::time:
      event_.time = number * 1000;
      return;
    case ChromeField::duration:
      event_.duration = number * 1000;
      return;
    case ChromeField::process:
      event_.process = number;
      return;
    case ChromeField::thread:
      event_.thread = number;
      return;
    case ChromeField::device:
      event_.device = number;
      return;
    case ChromeField::stream:
      event_.stream = number;
      return;
    case ChromeField::issuer:
      event_.issuer = number;
      return;
    case ChromeField::correlation:
      event_.correlation = count;
      return;
    case ChromeField::bytes:
      event_.bytes = count;
      return;
    case ChromeField::graph:
      event_.graph = count;
      return;
    case ChromeField::graph_node:
      event_.graph_node = count;
      return;
    case ChromeField::memory_device_type:
      event_.memory_device_type = number;
      return;
    case ChromeField::memory_device:
      event_.memory_device = number;
      return;
    case ChromeField::memory_bytes:
      event_.memory_bytes = number;
      return;
    case ChromeField::memory_address:
      event_.memory_address = count;
      return;
    case ChromeField::memory_allocated:
      event_.memory_allocated = count;
      return;
    case ChromeField::memory_reserved:
      event_.memory_reserved = count;
      return;
    default:
      (void)wrong_type();
  }
}

void DocumentReader::refuse_deep() const {
  throw UsageError({.what = fmt::format("the {} is nested more than {} deep", timeline_.source, kDeepest),
                    .where = objects_ == 0 ? "" : fmt::format("event {}", objects_),
                    .fix = "name a trace of torch.profiler, as export_chrome_trace() writes it"});
}

/// A value that is not of its field's type. Processes and threads may have names, and work says its device elsewhere.
bool DocumentReader::wrong_type() {
  const bool matters = field_ != ChromeField::other && field_ != ChromeField::args && field_ != ChromeField::process &&
                       field_ != ChromeField::thread;
  if (matters) event_.malformed = true;
  field_ = ChromeField::other;
  return true;
}

bool DocumentReader::parse_error(std::size_t position, const std::string& last_token,
                                 const nlohmann::json::exception& error) {
  document_.position = position;
  if (error.id == kNumberTooLarge) document_.too_large = last_token;
  std::string_view reason = error.what();  // "[json.exception...] parse error at line 1, column 2: syntax error ..."
  if (const std::size_t place = reason.find("column "); place != std::string_view::npos) {
    if (const std::size_t colon = reason.find(": ", place); colon != std::string_view::npos) {
      reason.remove_prefix(colon + 2);
    }
  }
  document_.reason = reason;
  return false;
}

}  // namespace

std::string memory_left_text(std::int32_t device, const memory::FreeMemory& left) {
  return fmt::format("[{}, {}, {}, {}]", device, left.of_driver, left.cached, left.returnable);
}

ChromeDocument read_chrome_document(std::istream& text, Timeline& timeline) {
  ChromeDocument document;
  DocumentReader reader(timeline, document);
  document.complete = nlohmann::json::sax_parse(text, &reader);
  document.cut = !document.complete && text.eof();
  if (document.cut && document.position > 0) --document.position;  // The parser counts the end as a character.
  reader.finish();
  return document;
}

}  // namespace pianola::profiling
