#pragma once

namespace pianola::profiling {

// What the parent tells the recorder in the programs that it starts, which pass it on to theirs.
inline constexpr const char* kFolderVariable = "PIANOLA_PROFILE_DIR";  ///< Where recordings go; unset: none is made.
inline constexpr const char* kMostBytesVariable = "PIANOLA_PROFILE_MAX_BYTES";   ///< Of each process's file.
inline constexpr const char* kDelayVariable = "PIANOLA_PROFILE_DELAY_MS";        ///< RecorderOptions::delay.
inline constexpr const char* kDurationVariable = "PIANOLA_PROFILE_DURATION_MS";  ///< RecorderOptions::duration.
inline constexpr const char* kCuptiVariable = "PIANOLA_PROFILE_CUPTI";  ///< The library, where the process has none.

// CUDA's driver loads the library that the first names and calls its InitializeInjection; NVTX that of the second.
inline constexpr const char* kCudaInjectionVariable = "CUDA_INJECTION64_PATH";
inline constexpr const char* kNvtxInjectionVariable = "NVTX_INJECTION64_PATH";

}  // namespace pianola::profiling
