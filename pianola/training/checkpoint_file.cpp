#include <pianola/training/checkpoint_file.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace pianola::training {
namespace {

// Note [The seal of a checkpoint]
// torch's reader of zip archives checks no sums: a flipped bit would be loaded. So a checkpoint ends with a comment, which a
// zip archive may have and torch.load() ignores: a mark, and the CRC-64 of every byte before the comment's length. The last
// record of an archive is 22 bytes long and ends with that length, 0 where there is no comment.
constexpr std::string_view kMark = "pianola:crc64:";
constexpr std::size_t kSumDigits = 16;
constexpr std::size_t kSealBytes = kMark.size() + kSumDigits;
constexpr std::size_t kLengthBytes = 2;
constexpr std::size_t kLastRecordBytes = 22;
constexpr std::string_view kLastRecord("PK\x05\x06", 4);

// CRC-64/XZ, eight bytes at a time.
class Crc64 {
 public:
  static std::uint64_t add(std::uint64_t sum, const unsigned char* bytes, std::size_t size) noexcept {
    static const Crc64 tables;
    sum = ~sum;
    for (; size >= 8; size -= 8, bytes += 8) {
      std::uint64_t word = 0;
      for (int i = 7; i >= 0; --i) word = word << 8U | bytes[i];
      word ^= sum;
      sum = 0;
      for (std::size_t i = 0; i < 8; ++i) sum ^= tables.table_[7 - i][(word >> (8 * i)) & 0xFFU];
    }
    for (; size > 0; --size, ++bytes) sum = tables.table_[0][(sum ^ *bytes) & 0xFFU] ^ (sum >> 8U);
    return ~sum;
  }

 private:
  Crc64() noexcept {
    constexpr std::uint64_t kPolynomial = 0xC96C5795D7870F42;
    for (std::uint64_t byte = 0; byte < 256; ++byte) {
      std::uint64_t sum = byte;
      for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1U) ^ ((sum & 1U) != 0 ? kPolynomial : 0);
      table_[0][byte] = sum;
    }
    for (std::size_t i = 1; i < 8; ++i) {
      for (std::size_t byte = 0; byte < 256; ++byte) {
        const std::uint64_t before = table_[i - 1][byte];
        table_[i][byte] = table_[0][before & 0xFFU] ^ (before >> 8U);
      }
    }
  }
  std::array<std::array<std::uint64_t, 256>, 8> table_{};
};

std::uint64_t add(std::uint64_t sum, const void* bytes, std::size_t size) {
  return Crc64::add(sum, static_cast<const unsigned char*>(bytes), size);
}

std::string seal_of(std::uint64_t sum) { return fmt::format("{}{:016x}", kMark, sum); }

std::string random_name() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) number = 0;
  return fmt::format(".{:016x}.part", number);
}

UsageError not_whole(const std::filesystem::path& file, const char* why) {
  return UsageError({.what = fmt::format("{} {}; nothing was loaded", file.string(), why),
                     .fix = "load an earlier checkpoint, or copy the file anew from where it was written"});
}

// The sum of the next `size` bytes.
std::uint64_t sum_of(std::istream& stream, std::uint64_t size) {
  std::vector<char> buffer(std::size_t{1} << 20U);
  std::uint64_t sum = 0;
  while (size > 0 && stream) {
    stream.read(buffer.data(), static_cast<std::streamsize>(std::min<std::uint64_t>(size, buffer.size())));
    sum = add(sum, buffer.data(), static_cast<std::size_t>(stream.gcount()));
    size -= static_cast<std::uint64_t>(stream.gcount());
  }
  return sum;
}

std::string last_bytes(std::istream& stream, std::uint64_t size, std::uint64_t wanted) {
  std::string bytes(std::min(size, wanted), '\0');
  stream.seekg(static_cast<std::streamoff>(size - bytes.size()));
  stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

}  // namespace

// Exclusive: what lies there under this name, a link to somebody else's file say, is not touched; another name is tried.
ReplacementFile::ReplacementFile(std::filesystem::path target) : target_(std::move(target)) {
  for (int attempt = 0; attempt < 100 && file_ < 0; ++attempt) {
    path_ = target_.string() + random_name();
    file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST) break;
  }
  if (file_ < 0) fail(errno);
}

ReplacementFile::~ReplacementFile() {
  if (file_ < 0) return;
  close(file_);
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void ReplacementFile::fail(int error) const {
  throw UsageError(
      {.what = fmt::format("{} cannot be written: {}", target_.string(), std::system_category().message(error)),
       .fix = "check that its folder exists and has room; an earlier file is as it was"});
}

void ReplacementFile::write(const void* bytes, std::size_t size) noexcept {
  const auto* data = static_cast<const char*>(bytes);
  if (size < kLengthBytes) {  // rare: what is held back grows for a moment
    held_back_.append(data, size);
    if (held_back_.size() <= kLengthBytes) return;
    const std::string all = std::exchange(held_back_, {});
    write_out(all.data(), all.size() - kLengthBytes);
    held_back_ = all.substr(all.size() - kLengthBytes);
    return;
  }
  write_out(held_back_.data(), held_back_.size());
  write_out(data, size - kLengthBytes);
  held_back_.assign(data + size - kLengthBytes, kLengthBytes);
}

void ReplacementFile::write_out(const void* bytes, std::size_t size) noexcept {
  const auto* data = static_cast<const char*>(bytes);
  sum_ = add(sum_, data, size);
  while (size > 0 && error_ == 0) {
    const ssize_t written = ::write(file_, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      error_ = written < 0 ? errno : ENOSPC;
      return;
    }
    data += written;
    size -= static_cast<std::size_t>(written);
  }
}

void ReplacementFile::seal() noexcept {
  held_back_.clear();
  const std::string seal = seal_of(sum_);
  const std::array<unsigned char, kLengthBytes> length = {kSealBytes, 0};
  write_out(length.data(), length.size());
  write_out(seal.data(), seal.size());
}

void ReplacementFile::commit() {
  write_out(held_back_.data(), held_back_.size());
  if (error_ != 0) fail(error_);
  if (fsync(file_) != 0) fail(errno);
  std::error_code failure;
  std::filesystem::rename(path_, target_, failure);
  if (failure) fail(failure.value());
  close(std::exchange(file_, -1));
  // The new name is on the disk as well, where the system knows how.
  const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : std::filesystem::path(".");
  const int directory = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  (void)fsync(directory);
  close(directory);
}

bool check_whole(std::istream& stream, const std::filesystem::path& file) {
  stream.seekg(0, std::ios::end);
  const auto size = static_cast<std::uint64_t>(stream.tellg());
  const std::string tail = last_bytes(stream, size, kSealBytes + kLastRecordBytes);
  const bool unsealed = tail.size() >= kLastRecordBytes &&
                        tail.compare(tail.size() - kLastRecordBytes, kLastRecord.size(), kLastRecord) == 0 &&
                        tail.ends_with(std::string_view("\0\0", kLengthBytes));
  bool whole = false;
  if (!unsealed) {
    const std::string seal = tail.substr(tail.size() - std::min(tail.size(), kSealBytes));
    if (tail.size() < kSealBytes + kLastRecordBytes || !seal.starts_with(kMark)) {
      throw not_whole(file, "is no checkpoint, or only a part of one: it does not end as one does");
    }
    stream.seekg(0);
    if (seal != seal_of(sum_of(stream, size - kSealBytes - kLengthBytes)) ||
        tail.substr(kLastRecordBytes - kLengthBytes, kLengthBytes) != std::string({static_cast<char>(kSealBytes), 0})) {
      throw not_whole(file, "is damaged: its checksum is that of other bytes");
    }
    whole = true;
  }
  stream.clear();
  stream.seekg(0);
  return whole;
}

}  // namespace pianola::training
