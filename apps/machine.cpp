#include <apps/machine.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/version.hpp>
#include <pianola/graph/internals.hpp>

#include <ATen/Parallel.h>
#include <torch/csrc/api/include/torch/version.h>

#include <fmt/format.h>

#include <fstream>
#include <utility>
#include <vector>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#endif

namespace pianola::program {
namespace {

struct CudaDevice {
  std::string name;
  std::size_t memory_bytes = 0;
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
};

// "13.0", or nothing for 0, which CUDA gives where there is no driver.
ReportValue cuda_version(int version) {
  if (version == 0) return {};
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

#if PIANOLA_WITH_CUDA
int cuda_device_count() { return c10::cuda::device_count(); }

int cuda_runtime_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

int cuda_driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

CudaDevice cuda_device(int index) {
  cudaDeviceProp properties{};
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, index); status != cudaSuccess) {
    throw DeviceError(
        {.what = fmt::format("cannot ask for the properties of cuda:{}: {}", index, cudaGetErrorString(status))});
  }
  return {.name = properties.name,
          .memory_bytes = properties.totalGlobalMem,
          .major = properties.major,
          .minor = properties.minor,
          .multiprocessors = properties.multiProcessorCount};
}
#else
int cuda_device_count() { return 0; }
int cuda_runtime_version() { return 0; }
int cuda_driver_version() { return 0; }
CudaDevice cuda_device(int) { return {}; }
#endif

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::string cuda_backend_state() {
  if (!PIANOLA_WITH_CUDA) return "no: built without CUDA";
  if (cuda_driver_version() == 0) return "no: there is no CUDA driver";
  return cuda_device_count() == 0 ? "no: the driver sees no device" : "yes";
}

ReportTable devices_table() {
  ReportTable table("devices", "Devices",
                    {{"device"}, {"name"}, {"memory_bytes", "memory", "bytes"}, {"capability"}, {"multiprocessors"}});
  table.row({"cpu", processor_name(), {}, {}, {}});
  for (int index = 0; index < cuda_device_count(); ++index) {
    const CudaDevice device = cuda_device(index);
    table.row({fmt::format("cuda:{}", index), device.name, device.memory_bytes,
               fmt::format("{}.{}", device.major, device.minor), device.multiprocessors});
  }
  return table;
}

}  // namespace

Report machine_report() {
  Report report("Pianola");
  report.fact("pianola", "pianola", version())
      .fact("torch", "torch", TORCH_VERSION)
      .fact("cuda_runtime", "CUDA runtime", cuda_version(cuda_runtime_version()))
      .fact("cuda_driver", "CUDA driver", cuda_version(cuda_driver_version()))
      .fact("threads", "threads", at::get_num_threads());
  report.table(ReportTable("backends", "Backends", {{"backend"}, {"for"}, {"usable"}})
                   .row({"cuda", "CUDA tensors", cuda_backend_state()})
                   .row({"tape", "CPU tensors", "yes"}));
  report.table(devices_table());
  return report;
}

bool add_internals(Report& report) {
  std::vector<c10::Device> devices{{c10::kCPU}};
  for (int index = 0; index < cuda_device_count(); ++index)
    devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  ReportTable table("internals", "What Pianola builds on inside torch",
                    {{"device"}, {"internal"}, {"used_for", "used for"}, {"state"}});
  bool sound = true;
  const auto add = [&](const std::string& device, const Internal& internal) {
    sound = sound && internal.trouble.empty();
    const std::string state = internal.trouble.empty() ? "as needed" : "moved: " + internal.trouble;
    table.row({device, internal.name, internal.used_for,
               internal.tried ? state : "not tried: another allocator is in front"});
  };
  for (const c10::Device device : devices) {
    try {
      for (const Internal& internal : check_internals(device)) add(device.str(), internal);
    } catch (const Error& error) {
      add(device.str(), {.name = "all", .used_for = "", .trouble = error.diagnosis().what});
    }
  }
  report.table(std::move(table));
  return sound;
}

std::string device_name(c10::Device device) {
  return device.is_cuda() ? cuda_device(device.index()).name : processor_name();
}

c10::Device chosen_device(const std::string& name) {
  const bool has_cuda = cuda_device_count() > 0;
  if (name == "cpu" || (name == "auto" && !has_cuda)) return {c10::kCPU};
  if (has_cuda) return {c10::kCUDA, 0};
  throw DeviceError({.what = "there is no CUDA device to run on" +
                             std::string(PIANOLA_WITH_CUDA ? "" : ": this Pianola was built without CUDA"),
                     .fix = "use --device cpu, or see what 'pianola info' finds"});
}

}  // namespace pianola::program
