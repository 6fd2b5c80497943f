#include <pianola/profile/read/trace_input.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>
#if PIANOLA_WITH_ZLIB
#include <zlib.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <streambuf>
#include <system_error>
#include <utility>
#include <vector>

namespace pianola::profiling {

/// A piece of the text at a time.
class TraceInput::Buffer : public std::streambuf {
 public:
  std::string damage;

 protected:
  /// Puts the next bytes into `room` and returns how many; 0 at the end or where `damage` says why.
  virtual std::size_t fill(std::span<char> room) = 0;

  int_type underflow() override {
    const std::size_t bytes = fill(piece_);
    setg(piece_.data(), piece_.data(), piece_.data() + bytes);
    return bytes == 0 ? traits_type::eof() : traits_type::to_int_type(piece_.front());
  }

 private:
  std::vector<char> piece_ = std::vector<char>(std::size_t{1} << 18);
};

namespace {

using CFile = std::unique_ptr<std::FILE, decltype([](std::FILE* file) { (void)std::fclose(file); })>;

class PlainBuffer final : public TraceInput::Buffer {
 public:
  explicit PlainBuffer(CFile file) : file_(std::move(file)) {}

 private:
  std::size_t fill(std::span<char> room) override {
    const std::size_t bytes = std::fread(room.data(), 1, room.size(), file_.get());
    if (bytes == 0 && std::ferror(file_.get()) != 0) damage = std::generic_category().message(errno);
    return bytes;
  }

  CFile file_;
};

#if PIANOLA_WITH_ZLIB
class GzipBuffer final : public TraceInput::Buffer {
 public:
  explicit GzipBuffer(const std::filesystem::path& file) : file_(gzopen(file.c_str(), "rb")) {
    if (file_) (void)gzbuffer(file_.get(), 1U << 18U);
  }

 private:
  std::size_t fill(std::span<char> room) override {
    const int bytes = file_ ? gzread(file_.get(), room.data(), static_cast<unsigned>(room.size())) : 0;
    int code = file_ ? Z_OK : Z_MEM_ERROR;
    const char* words = file_ ? gzerror(file_.get(), &code) : "out of memory";
    // A file that is cut off ends with Z_BUF_ERROR: what was read of it is good.
    if (bytes > 0 && is_bomb(static_cast<std::uint64_t>(bytes))) {
      damage = fmt::format("it unpacks to more than {} times its size, as no trace does", kMostRatio);
      return 0;
    }
    if (bytes <= 0 && code != Z_OK && code != Z_BUF_ERROR && damage.empty()) damage = without_path(words);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
  }

  // Traces unpack to some 20 times their size, at most 100 times; what is made to fill memory to 1000 times.
  static constexpr std::uint64_t kMostRatio = 250, kSmall = std::uint64_t{64} << 20U;
  bool is_bomb(std::uint64_t more) {
    unpacked_ += more;
    const auto read = static_cast<std::uint64_t>(std::max<z_off_t>(gzoffset(file_.get()), 1));
    return unpacked_ > kSmall && unpacked_ / read > kMostRatio;
  }

  /// zlib says "PATH: invalid block type".
  static std::string without_path(const char* words) {
    const char* colon = std::strrchr(words, ':');
    return colon != nullptr && colon[1] == ' ' ? colon + 2 : words;
  }

  std::unique_ptr<gzFile_s, decltype([](gzFile file) { (void)gzclose(file); })> file_;
  std::uint64_t unpacked_ = 0;
};
#endif

CFile open(const std::filesystem::path& file) {
  std::error_code error;
  const std::string name = file.string();
  const auto status = std::filesystem::status(file, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw UsageError({.what = fmt::format("there is no trace file '{}'", name), .fix = "check the path"});
  }
  if (status.type() == std::filesystem::file_type::directory) {
    throw UsageError({.what = fmt::format("'{}' is a folder, not a trace file", name),
                      .fix = "name one of the traces in it, a *.json or *.json.gz"});
  }
  if (!error && status.type() != std::filesystem::file_type::regular) {
    throw UsageError({.what = fmt::format("'{}' is a pipe or a device, not a trace file", name),
                      .fix = "write what comes out of it to a file, and name that"});
  }
  CFile opened(std::fopen(name.c_str(), "rb"));
  if (!opened) {
    throw UsageError(
        {.what = fmt::format("the trace file '{}' cannot be opened: {}", name, std::generic_category().message(errno)),
         .fix = "check that you may read it"});
  }
  return opened;
}

/// The first two bytes, as many as there are.
std::string magic(std::FILE* file) {
  std::array<char, 2> bytes = {};
  const std::size_t count = std::fread(bytes.data(), 1, bytes.size(), file);
  std::rewind(file);
  return {bytes.data(), count};
}

std::unique_ptr<TraceInput::Buffer> gzip_buffer(const std::filesystem::path& file) {
#if PIANOLA_WITH_ZLIB
  return std::make_unique<GzipBuffer>(file);
#else
  throw UsageError(
      {.what = fmt::format("the trace '{}' is compressed with gzip, and this build has no zlib", file.string()),
       .fix = "unpack it (gzip -dk FILE), or install zlib's development files and build again"});
#endif
}

std::unique_ptr<TraceInput::Buffer> buffer_for(const std::filesystem::path& file, bool& compressed) {
  CFile opened = open(file);
  const std::string first = magic(opened.get());
  if (first.empty()) {
    throw UsageError({.what = fmt::format("the trace file '{}' is empty", file.string()),
                      .fix = "record it again; a profiler writes the file when it stops"});
  }
  compressed = first == "\x1f\x8b";
  if (compressed) return gzip_buffer(file);
  return std::make_unique<PlainBuffer>(std::move(opened));
}

}  // namespace

TraceInput::TraceInput(const std::filesystem::path& file)
    : buffer_(buffer_for(file, compressed_)), stream_(buffer_.get()) {}

TraceInput::~TraceInput() = default;

const std::string& TraceInput::damage() const noexcept { return buffer_->damage; }

}  // namespace pianola::profiling
