#pragma once
#include <cuda.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace pianola {

/// A kernel that is compiled when it is first launched, by NVRTC, which comes with torch: no compiler of CUDA is needed to build Pianola,
/// and the code is the device's own.
struct KernelSource {
  const char* code;                  ///< CUDA C++, self-contained.
  const char* function;              ///< extern "C".
  std::vector<std::string> options;  ///< As "-DWIDTH=4".
};

/// What compiling gave: machine code, or what the compiler said.
struct CompiledCode {
  std::string binary;
  std::string log;
};

/// Whether there is an NVRTC. Threads: any.
[[nodiscard]] bool has_compiler() noexcept;

/// Whether it knows devices of this compute capability, as 90. Threads: any.
[[nodiscard]] bool can_compile_for(int architecture) noexcept;

/// @param architecture  "sm_90". Needs no device. @throws DeviceError  There is no NVRTC, or it does not take the code: its log.
[[nodiscard]] CompiledCode compile(const KernelSource& source, const std::string& architecture);

/// The kernel, for the current device of the CUDA runtime, loaded: for as long as the program runs. May be called while a capture is open
/// on this thread, and on threads that have not used the device yet, as autograd's. @throws DeviceError  As compile(), or it cannot be
/// loaded.
[[nodiscard]] CUfunction load_kernel(const KernelSource& source);

/// The current device of the CUDA runtime.
[[nodiscard]] int current_cuda_device();

/// Kernels that are loaded, by what each was compiled for and by device. Threads: any.
template <class Kind>
class KernelCache {
 public:
  /// @param source_of  Gives its source, when it is first asked for. @throws DeviceError  As load_kernel().
  template <class Source>
  [[nodiscard]] CUfunction get(const Kind& kind, const Source& source_of) {
    const std::lock_guard lock(mutex_);
    CUfunction& kernel = known_[{current_cuda_device(), kind}];
    if (kernel == nullptr) kernel = load_kernel(source_of());
    return kernel;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, Kind>, CUfunction> known_;
};

/// Launches it on a stream, with `threads` in each block. @param arguments  Where each of its parameters is. @throws DeviceError
void launch_kernel(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream, void** arguments);

}  // namespace pianola
