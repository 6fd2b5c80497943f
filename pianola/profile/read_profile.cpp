#include <pianola/profile/read_profile.hpp>

#include <pianola/profile/chrome_trace.hpp>
#include <pianola/profile/recording.hpp>

namespace pianola {

Timeline read_profile(const std::filesystem::path& path) {
  return std::filesystem::is_directory(path) ? read_recordings(path.string()) : read_chrome_trace(path);
}

}  // namespace pianola
