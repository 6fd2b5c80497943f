#include <pianola/cuda/cupti_library.hpp>

#include <link.h>

#include <array>
#include <string_view>

namespace pianola {
namespace {

// The versions whose numbers of entry points are the ones here: numbers are only ever added.
constexpr std::array kNames = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
constexpr std::array kRuntimeNames = {"libcudart.so.13", "libcudart.so.12"};

void* loaded_already() {
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return library;
  }
  return nullptr;
}

// "/.../nvidia/cu13/lib/", as far as a CUDA runtime is loaded.
std::string folder_of_runtime() {
  for (const char* name : kRuntimeNames) {
    void* runtime = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    link_map* map = nullptr;
    if (runtime == nullptr || dlinfo(runtime, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) continue;
    const std::string_view path = map->l_name;
    return std::string(path.substr(0, path.rfind('/') + 1));
  }
  return "";
}

void* open_library(const std::string& path) { return dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL); }

}  // namespace

void* cupti_library(const std::string& fallback) {
  if (void* found = loaded_already()) return found;
  const std::string folder = folder_of_runtime();
  for (const char* name : kNames) {
    if (void* found = folder.empty() ? nullptr : open_library(folder + name)) return found;
  }
  if (void* found = fallback.empty() ? nullptr : open_library(fallback)) return found;
  for (const char* name : kNames) {
    if (void* found = open_library(name)) return found;
  }
  return nullptr;
}

}  // namespace pianola
