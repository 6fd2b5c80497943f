#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

/// What libFuzzer calls, or the driver of this folder: one input for one reader. A finding is whatever does not come back:
/// an exception that the reader does not promise, a crash, a sanitizer's report, a time-out.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace pianola::fuzz {

/// What a reader promises of every input.
inline void expect(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", promise);
  std::abort();
}

inline std::string text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A file of this process that holds one input after another.
class InputFile {
 public:
  explicit InputFile(std::string_view ending);
  ~InputFile();
  InputFile(InputFile&&) = delete;

  [[nodiscard]] const std::string& write(const std::uint8_t* data, std::size_t size) const;

 private:
  std::string path_;
};

}  // namespace pianola::fuzz
