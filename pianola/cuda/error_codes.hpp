#pragma once
#include <pianola/core/error.hpp>

#include <cuda.h>

#include <string>
#include <string_view>

namespace pianola {

/// A result code of CUDA in words. The texts live as long as the program.
struct CaptureCode {
  std::string_view name;     ///< As in cuda.h: "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"; empty where it is not known.
  std::string_view meaning;  ///< What happened, in half a sentence.
  std::string_view fix;      ///< What to do about it; empty where nothing can be advised.
};

/// Explains a code, above all those of a failing capture (900 to 908). Needs no driver. The codes of the runtime
/// (cudaError_t) that capture and launch return have the same numbers and may be cast.
[[nodiscard]] CaptureCode describe(CUresult code) noexcept;

/// "CUDA_ERROR_STREAM_CAPTURE_UNJOINED (904): a side stream was not joined ...".
[[nodiscard]] std::string in_words(CUresult code);

/// The parts of an error about a call that returned `code`.
[[nodiscard]] Diagnosis diagnose(CUresult code, std::string_view call, std::string where = {});

/// Throws DeviceError where a call did not succeed.
///
///     check(driver.graph_upload(exec, stream), "cuGraphUpload");
[[noreturn]] void throw_device_error(CUresult code, const char* call);
inline void check(CUresult code, const char* call) {
  if (code != CUDA_SUCCESS) [[unlikely]]
    throw_device_error(code, call);
}

}  // namespace pianola
