#include <tests/fuzz/mutator.hpp>

#include <algorithm>
#include <array>
#include <string_view>

namespace pianola::fuzz {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 20;

// As text: limits of types and their neighbours, what is no number of JSON, and what is no longer one in a double.
constexpr std::array<std::string_view, 24> kTexts = {"0",
                                                     "-1",
                                                     "-0",
                                                     "1e400",
                                                     "-1e400",
                                                     "1e-400",
                                                     "0.5",
                                                     "1e18",
                                                     "9223372036854775807",
                                                     "9223372036854775808",
                                                     "-9223372036854775808",
                                                     "-9223372036854775809",
                                                     "18446744073709551615",
                                                     "18446744073709551616",
                                                     "9223372036854775.807",
                                                     "-9223372036854775.808",
                                                     "2999999999999999",
                                                     "31535999999999.9",
                                                     "2147483648",
                                                     "-2147483649",
                                                     "4294967296",
                                                     "NaN",
                                                     "null",
                                                     "\"5\""};
// As bytes, of which the first 1, 2, 4 or 8 are taken.
constexpr std::array<std::uint64_t, 12> kWords = {0,
                                                  1,
                                                  0x7F,
                                                  0x80,
                                                  0xFF,
                                                  0x7FFF'FFFF,
                                                  0x8000'0000,
                                                  0xFFFF'FFFF,
                                                  0x7FFF'FFFF'FFFF'FFFF,
                                                  0x8000'0000'0000'0000,
                                                  0xFFFF'FFFF'FFFF'FFFF,
                                                  0x29A2'241A'F62C'0000};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void flip_bit(std::string& bytes, Numbers& numbers) {
  if (bytes.empty()) return;
  char& byte = bytes[numbers.below(bytes.size())];
  byte = static_cast<char>(byte ^ (1 << numbers.below(8)));
}

void set_byte(std::string& bytes, Numbers& numbers) {
  if (!bytes.empty()) bytes[numbers.below(bytes.size())] = static_cast<char>(numbers.below(256));
}

// The run of digits at or after a random place, with its sign and point.
void replace_number(std::string& bytes, Numbers& numbers) {
  if (bytes.empty()) return;
  const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(numbers.below(bytes.size()));
  auto begin = std::find_if(from, bytes.end(), is_digit);
  if (begin == bytes.end()) return;
  while (begin != bytes.begin() && (is_digit(begin[-1]) || begin[-1] == '.' || begin[-1] == '-')) --begin;
  const auto end = std::find_if(begin, bytes.end(), [](char c) { return !is_digit(c) && c != '.' && c != '-'; });
  bytes.replace(begin, end, kTexts[numbers.below(kTexts.size())]);
}

void replace_word(std::string& bytes, Numbers& numbers) {
  const std::uint64_t word = kWords[numbers.below(kWords.size())];
  const std::size_t size = std::size_t{1} << numbers.below(4);
  if (bytes.size() < size) return;
  const std::size_t at = numbers.below(bytes.size() - size + 1);
  const bool big_endian = numbers.below(2) == 0;  // As SQLite has it.
  for (std::size_t i = 0; i < size; ++i) {
    bytes[at + (big_endian ? size - 1 - i : i)] = static_cast<char>(word >> (8 * i));
  }
}

// A varint of up to ten bytes, as recordings have it.
void replace_varint(std::string& bytes, Numbers& numbers) {
  if (bytes.empty()) return;
  std::string varint;
  std::uint64_t word = kWords[numbers.below(kWords.size())] << numbers.below(2);
  for (; word >= 0x80; word >>= 7U) varint.push_back(static_cast<char>(word | 0x80U));
  varint.push_back(static_cast<char>(word));
  bytes.replace(numbers.below(bytes.size()), 1 + numbers.below(varint.size()), varint);
}

void cut_out(std::string& bytes, Numbers& numbers) {
  if (bytes.empty()) return;
  const std::size_t at = numbers.below(bytes.size());
  const bool to_the_end = numbers.below(4) == 0;
  bytes.erase(at, to_the_end ? std::string::npos : 1 + numbers.below(std::min<std::size_t>(bytes.size() - at, 200)));
}

std::string part_of(const std::string& bytes, Numbers& numbers) {
  if (bytes.empty()) return {};
  const std::size_t at = numbers.below(bytes.size());
  return bytes.substr(at, 1 + numbers.below(std::min<std::size_t>(bytes.size() - at, 400)));
}

void repeat(std::string& bytes, Numbers& numbers) {
  const std::string part = part_of(bytes, numbers);
  const std::size_t at = numbers.below(bytes.size() + 1);
  const std::size_t often = numbers.below(8) == 0 ? 1 + numbers.below(400) : 1;
  std::string copies;
  for (std::size_t i = 0; i < often && copies.size() < kLargest / 4; ++i) copies += part;
  bytes.insert(at, copies);
}

void splice(std::string& bytes, const std::string& other, Numbers& numbers) {
  const std::string part = part_of(other, numbers);
  const std::size_t at = numbers.below(bytes.size() + 1);
  bytes.replace(at, std::min(numbers.below(2) * part.size(), bytes.size() - at), part);
}

void change(std::string& bytes, const std::string& other, Numbers& numbers) {
  switch (numbers.below(10)) {
    case 0:
      return flip_bit(bytes, numbers);
    case 1:
      return set_byte(bytes, numbers);
    case 2:
      return cut_out(bytes, numbers);
    case 3:
      return repeat(bytes, numbers);
    case 4:
      return splice(bytes, other, numbers);
    case 5:
      return replace_word(bytes, numbers);
    case 6:
      return replace_varint(bytes, numbers);
    default:
      return replace_number(bytes, numbers);
  }
}

}  // namespace

std::uint64_t Numbers::next() noexcept {
  state_ += 0x9E37'79B9'7F4A'7C15;
  std::uint64_t word = state_;
  word = (word ^ (word >> 30U)) * 0xBF58'476D'1CE4'E5B9;
  word = (word ^ (word >> 27U)) * 0x94D0'49BB'1331'11EB;
  return word ^ (word >> 31U);
}

std::string Mutator::input(std::uint64_t seed, std::uint64_t number) const {
  Numbers numbers(seed ^ (number * 0xD134'2543'DE82'EF95));
  std::string bytes = seeds_[numbers.below(seeds_.size())];
  const std::string& other = seeds_[numbers.below(seeds_.size())];
  for (std::size_t changes = 1 + numbers.below(4); changes > 0; --changes) change(bytes, other, numbers);
  if (bytes.size() > kLargest) bytes.resize(kLargest);
  return bytes;
}

}  // namespace pianola::fuzz
