#pragma once
#include <pianola/cuda/library.hpp>

#include <string>

namespace pianola {

/// The CUPTI library of this process, as find_library() looks for it: the one that is loaded already, as torch does, else the one
/// beside the CUDA runtime. Never unloaded, since CUPTI leaves hooks in the driver. Threads: any.
[[nodiscard]] void* cupti_library(const std::string& fallback = {});

}  // namespace pianola
