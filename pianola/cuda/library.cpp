#include <pianola/cuda/library.hpp>

#include <link.h>

#include <string_view>

namespace pianola {
namespace {

void* loaded_already(const char* name) { return dlopen(name, RTLD_LAZY | RTLD_NOLOAD); }

// "/.../nvidia/cu13/lib/"; empty where the library is not loaded.
std::string folder_of(const char* neighbour) {
  void* library = loaded_already(neighbour);
  link_map* map = nullptr;
  if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) return "";
  const std::string_view path = map->l_name;
  return std::string(path.substr(0, path.rfind('/') + 1));
}

void* open_library(const std::string& path) { return dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL); }

}  // namespace

std::string path_beside(const char* neighbour, const char* name) {
  const std::string folder = folder_of(neighbour);
  return folder.empty() ? folder : folder + name;
}

void* find_library(std::span<const char* const> names, std::span<const char* const> neighbours,
                   const std::string& fallback) {
  for (const char* name : names) {
    if (void* found = loaded_already(name)) return found;
  }
  for (const char* neighbour : neighbours) {
    for (const char* name : names) {
      const std::string path = path_beside(neighbour, name);
      if (void* found = path.empty() ? nullptr : open_library(path)) return found;
    }
  }
  if (void* found = fallback.empty() ? nullptr : open_library(fallback)) return found;
  for (const char* name : names) {
    if (void* found = open_library(name)) return found;
  }
  return nullptr;
}

}  // namespace pianola
