#pragma once
#include <dlfcn.h>

#include <string>

namespace pianola {

/// The CUPTI library of this process: the one that is loaded already, as torch does, else the one beside the CUDA
/// runtime, else that at the path `fallback`, else any that the loader finds; nullptr where there is none.
///
/// Never unloaded, since CUPTI leaves hooks in the driver. Threads: any.
[[nodiscard]] void* cupti_library(const std::string& fallback = {});

/// Sets a member of a table of functions; nullptr where the library has no such symbol.
template <class Function>
void bind_symbol(Function& member, void* library, const char* symbol) {
  member = reinterpret_cast<Function>(dlsym(library, symbol));
}

}  // namespace pianola
