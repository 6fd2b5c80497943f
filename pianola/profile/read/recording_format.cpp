#include <pianola/profile/read/recording_format.hpp>

#include <pianola/profile/read/time_check.hpp>

#include <bit>
#include <limits>
#include <type_traits>
#include <utility>

namespace pianola::profiling {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are written as they lie in memory");

void append_time(std::string& bytes, Previous& previous, const TimeSpan& time) {
  append_signed(bytes, time.begin - previous.begin);
  append_signed(bytes, time.duration());
  previous.begin = time.begin;
}

TimeSpan take_time(ByteReader& from, Previous& previous) {
  previous.begin = wrapping_sum(previous.begin, from.signed_number());
  return {.begin = previous.begin, .end = wrapping_sum(previous.begin, from.signed_number())};
}

// What is read into a smaller type has to be one of its values.
template <class Small>
Small take_small(ByteReader& from) {
  const std::uint64_t number = from.number();
  if (number > std::numeric_limits<Small>::max()) from.fail();
  return static_cast<Small>(number);
}

template <class Kind>
Kind take_kind(ByteReader& from) {
  return static_cast<Kind>(take_small<std::underlying_type_t<Kind>>(from));
}

std::int32_t take_device(ByteReader& from) {
  const std::int64_t number = from.signed_number();
  if (!std::in_range<std::int32_t>(number)) from.fail();
  return static_cast<std::int32_t>(number);
}

void append_correlation(std::string& bytes, Previous& previous, std::uint64_t correlation) {
  append_signed(bytes, static_cast<std::int64_t>(correlation - previous.correlation));
  previous.correlation = correlation;
}

std::uint64_t take_correlation(ByteReader& from, Previous& previous) {
  previous.correlation += static_cast<std::uint64_t>(from.signed_number());
  return previous.correlation;
}

}  // namespace

Nanoseconds wrapping_sum(Nanoseconds a, Nanoseconds b) noexcept {
  return static_cast<Nanoseconds>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

void append_number(std::string& bytes, std::uint64_t number) {
  for (; number >= 0x80U; number >>= 7U) bytes.push_back(static_cast<char>(number | 0x80U));
  bytes.push_back(static_cast<char>(number));
}

// Zigzag: small numbers of either sign are short.
void append_signed(std::string& bytes, std::int64_t number) {
  append_number(bytes, (static_cast<std::uint64_t>(number) << 1U) ^ static_cast<std::uint64_t>(number >> 63));
}

void append_text(std::string& bytes, std::string_view text) {
  append_number(bytes, text.size());
  bytes.append(text);
}

void ByteReader::fail() noexcept {
  failed_ = true;
  rest_ = {};
}

std::uint64_t ByteReader::number() noexcept {
  std::uint64_t number = 0;
  for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    number |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if (byte < 0x80U) return number;
  }
  fail();
  return 0;
}

std::int64_t ByteReader::signed_number() noexcept {
  const std::uint64_t zigzag = number();
  return static_cast<std::int64_t>((zigzag >> 1U) ^ (~(zigzag & 1U) + 1U));
}

std::string_view ByteReader::text() noexcept {
  const std::uint64_t size = number();
  if (size > rest_.size()) {
    fail();
    return {};
  }
  const std::string_view text = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return text;
}

void append(std::string& bytes, Previous& previous, const DeviceWork& work) {
  append_time(bytes, previous, work.time);
  append_number(bytes, work.name);
  append_number(bytes, static_cast<std::uint64_t>(work.kind));
  append_signed(bytes, work.device);
  append_signed(bytes, work.stream);
  append_correlation(bytes, previous, work.correlation);
  append_number(bytes, work.graph);
  append_number(bytes, work.bytes);
}

void take(ByteReader& from, Previous& previous, DeviceWork& work) {
  work.time = take_time(from, previous);
  work.name = take_small<NameId>(from);
  work.kind = take_kind<DeviceWork::Kind>(from);
  work.device = take_device(from);
  work.stream = from.signed_number();
  work.correlation = take_correlation(from, previous);
  work.graph = from.number();
  work.bytes = from.number();
  if (work.bytes > static_cast<std::uint64_t>(kMostBytes)) from.fail();
}

void append(std::string& bytes, Previous& previous, const HostCall& call) {
  append_time(bytes, previous, call.time);
  append_number(bytes, call.name);
  append_number(bytes, static_cast<std::uint64_t>(call.kind));
  append_signed(bytes, call.thread);
  append_correlation(bytes, previous, call.correlation);
}

void take(ByteReader& from, Previous& previous, HostCall& call) {
  call.time = take_time(from, previous);
  call.name = take_small<NameId>(from);
  call.kind = take_kind<HostCall::Kind>(from);
  call.thread = from.signed_number();
  call.correlation = take_correlation(from, previous);
}

void append(std::string& bytes, Previous& previous, const HostRange& range) {
  append_time(bytes, previous, range.time);
  append_number(bytes, range.name);
  append_number(bytes, static_cast<std::uint64_t>(range.kind));
  append_signed(bytes, range.thread);
}

void take(ByteReader& from, Previous& previous, HostRange& range) {
  range.time = take_time(from, previous);
  range.name = take_small<NameId>(from);
  range.kind = take_kind<HostRange::Kind>(from);
  range.thread = from.signed_number();
}

}  // namespace pianola::profiling
