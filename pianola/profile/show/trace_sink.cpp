#include <pianola/profile/show/trace_sink.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>
#if PIANOLA_WITH_ZLIB
#include <zlib.h>
#endif

#include <fstream>

namespace pianola::profiling {
namespace {

class PlainSink final : public TraceSink {
 public:
  explicit PlainSink(const std::filesystem::path& file) : stream_(file, std::ios::binary | std::ios::trunc) {}

  [[nodiscard]] bool is_open() const override { return stream_.is_open(); }
  [[nodiscard]] bool write(std::string_view text) override {
    return static_cast<bool>(stream_.write(text.data(), static_cast<std::streamsize>(text.size())));
  }
  [[nodiscard]] bool close() override {
    stream_.close();
    return static_cast<bool>(stream_);
  }

 private:
  std::ofstream stream_;
};

#if PIANOLA_WITH_ZLIB
class GzipSink final : public TraceSink {
 public:
  explicit GzipSink(const std::filesystem::path& file) : file_(gzopen(file.c_str(), "wb")) {}
  ~GzipSink() override {
    if (file_ != nullptr) (void)gzclose(file_);
  }

  [[nodiscard]] bool is_open() const override { return file_ != nullptr; }
  [[nodiscard]] bool write(std::string_view text) override {
    return text.empty() || gzwrite(file_, text.data(), static_cast<unsigned>(text.size())) > 0;
  }
  [[nodiscard]] bool close() override {
    const int code = gzclose(file_);
    file_ = nullptr;
    return code == Z_OK;
  }

 private:
  gzFile file_;
};
#endif

std::unique_ptr<TraceSink> open_compressed(const std::filesystem::path& file) {
#if PIANOLA_WITH_ZLIB
  return std::make_unique<GzipSink>(file);
#else
  throw UsageError(
      {.what = fmt::format("the trace '{}' is to be compressed with gzip, and this build has no zlib", file.string()),
       .fix = "leave the .gz out, or install zlib's development files and build again"});
#endif
}

}  // namespace

std::unique_ptr<TraceSink> TraceSink::open(const std::filesystem::path& file) {
  if (file.extension() == ".gz") return open_compressed(file);
  return std::make_unique<PlainSink>(file);
}

}  // namespace pianola::profiling
