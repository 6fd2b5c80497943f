#include "cuda/device_info.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <fmt/format.h>

#include <fstream>
#include <sstream>

namespace pianola::bench::cuda {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...": the first word that begins with a digit.
std::string kernel_driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return "unknown";
}

}  // namespace

bool is_available() { return c10::cuda::device_count() > 0; }

Machine describe_device() {
  if (!is_available()) return {};
  cudaDeviceProp properties{};
  int runtime = 0;
  int driver = 0;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, /*device=*/0));
  C10_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  C10_CUDA_CHECK(cudaDriverGetVersion(&driver));
  return {{"device", properties.name},
          {"device_memory", fmt::format("{:.0f} GiB", static_cast<double>(properties.totalGlobalMem) / (1 << 30))},
          {"driver", kernel_driver()},
          {"driver_cuda", version_text(driver)},
          {"cuda", version_text(runtime)}};
}

}  // namespace pianola::bench::cuda
