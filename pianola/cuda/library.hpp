#pragma once
#include <dlfcn.h>

#include <span>
#include <string>

namespace pianola {

/// One of CUDA's libraries: the one that is loaded already, else the one beside another library that is loaded (a wheel's lie in one
/// folder), else that at the path `fallback`, else any that the loader finds; nullptr where there is none. Never unloaded.
///
/// @param names       Newest first, as "libcupti.so.13".
/// @param neighbours  Libraries of which one may be loaded, as "libcudart.so.13".
[[nodiscard]] void* find_library(std::span<const char* const> names, std::span<const char* const> neighbours,
                                 const std::string& fallback = {});

/// The path of a library beside another one that is loaded; empty where that is not. @param neighbour  As "libcudart.so.13".
[[nodiscard]] std::string path_beside(const char* neighbour, const char* name);

/// Sets a member of a table of functions; nullptr where the library has no such symbol.
template <class Function>
void bind_symbol(Function& member, void* library, const char* symbol) {
  member = reinterpret_cast<Function>(dlsym(library, symbol));
}

/// Sets the members of a table of functions one by one, and keeps the first symbol that the library lacks.
class SymbolBinder {
 public:
  explicit SymbolBinder(void* library) : library_(library) {}

  template <class Function>
  SymbolBinder& bind(Function& member, const char* symbol) {
    bind_symbol(member, library_, symbol);
    if (member == nullptr && missing_ == nullptr) missing_ = symbol;
    return *this;
  }

  /// nullptr: none.
  [[nodiscard]] const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

}  // namespace pianola
