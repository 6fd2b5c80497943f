#pragma once
#include <gtest/gtest.h>

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace pianola::profiling {

/// An empty folder that goes away with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(::testing::TempDir() + "pianola_profile_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { remove(path_); }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  static void remove(const std::string& folder) {
    DIR* open_folder = opendir(folder.c_str());
    while (const dirent* entry = open_folder == nullptr ? nullptr : readdir(open_folder)) {
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      const std::string path = folder + "/" + std::string(name);
      if (unlink(path.c_str()) != 0) remove(path);
    }
    if (open_folder != nullptr) closedir(open_folder);
    rmdir(folder.c_str());
  }

  std::string path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace pianola::profiling
