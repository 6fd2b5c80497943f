#include <pianola/profile/read_profile.hpp>

#include <pianola/profile/chrome_trace.hpp>

namespace pianola {

Timeline read_profile(const std::filesystem::path& path) { return read_chrome_trace(path); }

}  // namespace pianola
