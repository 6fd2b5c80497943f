#include <pianola/core/version.hpp>

namespace pianola {

std::string_view version() noexcept { return PIANOLA_VERSION; }  // set by CMake from the project's version

}  // namespace pianola
