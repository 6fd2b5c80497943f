#include "machine.hpp"

#include <ATen/Parallel.h>
#include <torch/headeronly/version.h>

#if PIANOLA_WITH_CUDA
#include "cuda/device_info.hpp"
#endif

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <thread>

namespace pianola::bench {
namespace {

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

Machine describe_machine() {
  Machine machine = {{"processor", processor()},
                     {"cores", fmt::to_string(std::thread::hardware_concurrency())},
                     {"torch_threads", fmt::to_string(at::get_num_threads())},
                     {"pianola", PIANOLA_VERSION},
                     {"torch", TORCH_VERSION},
                     {"compiler", __VERSION__}};
#if PIANOLA_WITH_CUDA
  for (auto& entry : cuda::describe_device()) machine.push_back(std::move(entry));
#endif
  return machine;
}

}  // namespace pianola::bench
