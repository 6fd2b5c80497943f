#pragma once
#include <pianola/profile/timeline.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pianola::profiling {

// A recording: a FileHeader, then blocks, each a BlockHeader and its records. Each block is appended by one write, so
// that what a killed process leaves is whole but for its last block. Numbers are little endian, in records varints:
// times as differences to the record before, so that most fields take one to three bytes. An id of a name is its place
// in the order of the file's names, and a block comes after those that name what it uses.

inline constexpr std::array<char, 8> kRecordingMagic = {'P', 'I', 'A', 'N', 'O', 'L', 'A', '\n'};
inline constexpr std::uint32_t kRecordingVersion = 1;
inline constexpr std::string_view kRecordingSuffix = ".pianola";

struct FileHeader {
  std::array<char, 8> magic = kRecordingMagic;
  std::uint32_t version = kRecordingVersion;
  std::uint32_t process_id = 0;
  std::int64_t clock = 0;  // of the records' times, when the recording began
  std::int64_t wall = 0;   // since 1970, at the same moment: what the recordings of several processes share
};
static_assert(sizeof(FileHeader) == 32);

enum class BlockKind : std::uint32_t { names = 1, work, calls, ranges, devices, dropped, note, end };

struct BlockHeader {
  BlockKind kind = BlockKind::end;
  std::uint32_t bytes = 0;  // of the records
  std::uint32_t records = 0;
};
static_assert(sizeof(BlockHeader) == 12);

// A block is written when its records reach the first; what claims to be larger than the second is damaged.
inline constexpr std::size_t kBlockBytes = std::size_t{256} << 10U;
inline constexpr std::size_t kMostBlockBytes = std::size_t{16} << 20U;

// Of a damaged file a sum may be anything: it wraps around, and the reader looks at what comes out.
[[nodiscard]] Nanoseconds wrapping_sum(Nanoseconds a, Nanoseconds b) noexcept;

void append_number(std::string& bytes, std::uint64_t number);
void append_signed(std::string& bytes, std::int64_t number);
void append_text(std::string& bytes, std::string_view text);

// Takes records apart. Behind the end all numbers are 0, all texts empty, and failed() is true.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) noexcept : rest_(bytes) {}
  [[nodiscard]] std::uint64_t number() noexcept;
  [[nodiscard]] std::int64_t signed_number() noexcept;
  [[nodiscard]] std::string_view text() noexcept;
  void fail() noexcept;
  [[nodiscard]] bool failed() const noexcept { return failed_; }
  [[nodiscard]] bool done() const noexcept { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool failed_ = false;
};

// What the next record of a block is told relative to.
struct Previous {
  Nanoseconds begin = 0;
  std::uint64_t correlation = 0;
};

void append(std::string& bytes, Previous& previous, const DeviceWork& work);
void append(std::string& bytes, Previous& previous, const HostCall& call);
void append(std::string& bytes, Previous& previous, const HostRange& range);
void take(ByteReader& from, Previous& previous, DeviceWork& work);
void take(ByteReader& from, Previous& previous, HostCall& call);
void take(ByteReader& from, Previous& previous, HostRange& range);

}  // namespace pianola::profiling
