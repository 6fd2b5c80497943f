#include <pianola/profile/read/recording_reader.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/quantities.hpp>
#include <pianola/profile/read/uneven_end.hpp>

#include <cxxabi.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

namespace pianola::profiling {
namespace {

constexpr const char* kWhatToGive = "give a file or a folder that `pianola profile` wrote";

std::string demangled(std::string_view name) {
  if (!name.starts_with("_Z")) return std::string(name);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(std::string(name).c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text != nullptr ? std::string(text.get()) : std::string(name);
}

template <class Value>
bool read_bytes(std::ifstream& file, Value& value) {
  return static_cast<bool>(file.read(reinterpret_cast<char*>(&value), sizeof value));
}

template <class Record>
constexpr auto kLastKind = Record::Kind::other;
template <>
constexpr auto kLastKind<DeviceWork> = DeviceWork::Kind::operation;
template <>
constexpr auto kLastKind<HostRange> = HostRange::Kind::module;

}  // namespace

RecordingReader::RecordingReader(const std::string& path)
    : path_(path), file_(path, std::ios::binary), check_(fmt::format("the recording '{}'", path)) {
  if (!file_.is_open()) {
    throw UsageError(
        {.what = fmt::format("cannot open the recording '{}': {}", path, strerror(errno)), .fix = kWhatToGive});
  }
  if (!read_bytes(file_, header_) || header_.magic != kRecordingMagic) {
    throw UsageError({.what = fmt::format("'{}' is no recording of `pianola profile`", path), .fix = kWhatToGive});
  }
  if (header_.version != kRecordingVersion) {
    throw UsageError(
        {.what = fmt::format("the recording '{}' has version {} of the format, this pianola reads version {}", path,
                             header_.version, kRecordingVersion),
         .fix = "read it with the pianola that recorded it"});
  }
  for (const Nanoseconds clock : {header_.clock, header_.wall}) {
    TimeCheck(fmt::format("the recording '{}'", path))({clock, clock}, [] { return std::string("its header"); });
  }
  position_ = sizeof header_;
}

void RecordingReader::read_into(Timeline& timeline, std::int32_t process) {
  while (!ended_ && read_block(timeline, process)) {
  }
  if (dropped_ > 0) {
    notes_.push_back(fmt::format("{} records were dropped: they came faster than they could be written", dropped_));
  }
  if (cut_ || !ended_) {
    const Nanoseconds left_out = leave_out_uneven_end(timeline, process);
    notes_.push_back("the process ended before the recording did: its last work may be missing");
    if (left_out > 0) notes_.back() += fmt::format("; the last {} were left out", duration_text(left_out));
  }
}

// False at the end of the file, whether it is as it should be or not.
bool RecordingReader::read_block(Timeline& timeline, std::int32_t process) {
  BlockHeader block;
  if (!read_bytes(file_, block)) {
    cut_ = cut_ || file_.gcount() > 0;
    return false;
  }
  const bool known = block.kind >= BlockKind::names && block.kind <= BlockKind::end;
  if (!known || block.bytes > kMostBlockBytes) {
    note_damage();
    return false;
  }
  bytes_.resize(block.bytes);
  if (!file_.read(bytes_.data(), static_cast<std::streamsize>(block.bytes))) {
    cut_ = true;
    return false;
  }
  if (!read_records(block, timeline, process)) {
    note_damage();
    return false;
  }
  position_ += sizeof block + block.bytes;
  return true;
}

bool RecordingReader::read_records(const BlockHeader& block, Timeline& timeline, std::int32_t process) {
  ByteReader from(bytes_);
  switch (block.kind) {
    case BlockKind::names:
      while (!from.done()) names_.push_back(timeline.intern(demangled(from.text())));
      break;
    case BlockKind::work:
      return read_list(block, from, timeline.work, process);
    case BlockKind::calls:
      return read_list(block, from, timeline.calls, process);
    case BlockKind::ranges:
      return read_list(block, from, timeline.ranges, process);
    case BlockKind::devices: {
      const auto number = static_cast<std::int32_t>(from.signed_number());
      devices_.emplace(number, from.text());
      break;
    }
    case BlockKind::dropped:
      dropped_ += from.number();
      break;
    case BlockKind::note:
      notes_.emplace_back(from.text());
      break;
    case BlockKind::end:
      ended_ = true;
      break;
  }
  return !from.failed();
}

template <class Record>
bool RecordingReader::read_list(const BlockHeader& block, ByteReader& from, std::vector<Record>& list,
                                std::int32_t process) {
  Previous previous;
  for (std::uint32_t i = 0; i < block.records; ++i) {
    Record record;
    take(from, previous, record);
    if (from.failed() || record.name >= names_.size() || record.kind > kLastKind<Record>) return false;
    record.name = names_[record.name];
    record.process = process;
    record.time = on_wall(record.time, i);
    list.push_back(record);
  }
  return from.done();
}

// `record` is its place in the block, from 0.
TimeSpan RecordingReader::on_wall(TimeSpan time, std::uint32_t record) {
  const Nanoseconds to_wall = header_.wall - header_.clock;
  const TimeSpan moved{wrapping_sum(time.begin, to_wall), wrapping_sum(time.end, to_wall)};
  check_(moved, [&] { return fmt::format("record {} of the block at byte {}", record + 1, position_); });
  return moved;
}

void RecordingReader::note_damage() {
  notes_.push_back(fmt::format("'{}' is damaged from byte {} on: everything before it was read", path_, position_));
}

}  // namespace pianola::profiling
