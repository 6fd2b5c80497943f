#include <pianola/torch_abi/cuda/workspace_size.hpp>

#include <ATen/cuda/CUDAContextLight.h>

#include <cstdlib>
#include <regex>
#include <string>

namespace pianola::torch_abi {

namespace {

constexpr std::size_t kKiB = 1024;

// 32 MiB on Hopper and on two of the Blackwells, else the :4096:2:16:8 of cuBLAS's documentation.
std::size_t recommended(int major) {
  return major == 9 || major == 10 || major == 12 ? 32 * kKiB * kKiB : (4096 * 2 + 16 * 8) * kKiB;
}

}  // namespace

std::size_t workspace_bytes_of(std::string_view config, int major) {
  static const std::regex pair(":([0-9]+):([0-9]+)");
  const std::string text(config);
  std::size_t bytes = 0;
  const std::sregex_iterator first(text.begin(), text.end(), pair), end;
  if (first == end) return recommended(major);
  for (auto one = first; one != end; ++one) bytes += std::stoull(one->str(1)) * kKiB * std::stoull(one->str(2));
  return bytes;
}

#if PIANOLA_TORCH_AT_LEAST(2, 12) && !PIANOLA_TORCH_AT_LEAST(2, 13)

std::size_t gemm_workspace_bytes() {
  static const std::size_t bytes = [] {  // once, as torch does
    const char* config = std::getenv("CUBLAS_WORKSPACE_CONFIG");
    return workspace_bytes_of(config == nullptr ? "" : config, at::cuda::getCurrentDeviceProperties()->major);
  }();
  return bytes;
}

#else

std::size_t gemm_workspace_bytes() { return at::cuda::getChosenWorkspaceSize(); }

#endif

}  // namespace pianola::torch_abi
