#include <pianola/core/source_place.hpp>

#include <filesystem>

namespace pianola {

std::string SourcePlace::text() const {
  std::string place = file.empty() ? "" : std::filesystem::path(file).filename().string();
  if (!place.empty() && line > 0) place += ":" + std::to_string(line);
  if (function.empty() || place.empty()) return function + place;
  return function + " at " + place;
}

}  // namespace pianola
