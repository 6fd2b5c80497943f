#include <tests/fuzz/fuzz_target.hpp>

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

namespace pianola::fuzz {

namespace {

// In memory where the system has a folder there: the files are many and small.
std::filesystem::path folder() {
  const std::filesystem::path memory = "/dev/shm";
  return access(memory.c_str(), W_OK | X_OK) == 0 ? memory : std::filesystem::temp_directory_path();
}

}  // namespace

InputFile::InputFile(std::string_view ending)
    : path_(folder() / ("pianola_fuzz_" + std::to_string(getpid()) + std::string(ending))) {}

InputFile::~InputFile() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

const std::string& InputFile::write(const std::uint8_t* data, std::size_t size) const {
  const std::unique_ptr<std::FILE, decltype([](std::FILE* file) { (void)std::fclose(file); })> file(
      std::fopen(path_.c_str(), "wb"));
  expect(file != nullptr && std::fwrite(data, 1, size, file.get()) == size, "the folder for temporary files is there");
  return path_;
}

}  // namespace pianola::fuzz
