#include <pianola/cuda/compiler.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/capture_mode.hpp>
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/error_codes.hpp>
#include <pianola/cuda/library.hpp>

#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace pianola {
namespace {

constexpr std::array kNvrtcNames = {"libnvrtc.so.13", "libnvrtc.so.12"};
constexpr std::array kNvrtcNeighbours = {"libcudart.so.13", "libcudart.so.12"};

struct Nvrtc {
  decltype(&nvrtcCreateProgram) create_program = nullptr;
  decltype(&nvrtcDestroyProgram) destroy_program = nullptr;
  decltype(&nvrtcCompileProgram) compile_program = nullptr;
  decltype(&nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&nvrtcGetCUBIN) cubin = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetErrorString) error_string = nullptr;
  decltype(&nvrtcGetNumSupportedArchs) count_architectures = nullptr;
  decltype(&nvrtcGetSupportedArchs) architectures = nullptr;
  bool is_whole = false;
};

// Torch's own door to it knows where it lies, if it does not lie beside the runtime; one that lies elsewhere may be of another CUDA.
void* nvrtc_library() {
  return find_library(kNvrtcNames, kNvrtcNeighbours, path_beside("libtorch_cuda.so", "libcaffe2_nvrtc.so"));
}

const Nvrtc& nvrtc() {
  static const Nvrtc table = [] {
    Nvrtc made;
    void* const library = nvrtc_library();
    if (library == nullptr) return made;
    made.is_whole = SymbolBinder(library)
                        .bind(made.create_program, "nvrtcCreateProgram")
                        .bind(made.destroy_program, "nvrtcDestroyProgram")
                        .bind(made.compile_program, "nvrtcCompileProgram")
                        .bind(made.cubin_size, "nvrtcGetCUBINSize")
                        .bind(made.cubin, "nvrtcGetCUBIN")
                        .bind(made.log_size, "nvrtcGetProgramLogSize")
                        .bind(made.log, "nvrtcGetProgramLog")
                        .bind(made.error_string, "nvrtcGetErrorString")
                        .bind(made.count_architectures, "nvrtcGetNumSupportedArchs")
                        .bind(made.architectures, "nvrtcGetSupportedArchs")
                        .missing() == nullptr;
    return made;
  }();
  return table;
}

class Program {
 public:
  explicit Program(const KernelSource& source) : api_(nvrtc()) {
    if (!api_.is_whole) {
      throw DeviceError({.what = "there is no NVRTC, which compiles a kernel for this device",
                         .fix = "install it: it comes with torch, as nvidia-cuda-nvrtc"});
    }
    check(api_.create_program(&program_, source.code, source.function, 0, nullptr, nullptr), source.function);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { api_.destroy_program(&program_); }

  CompiledCode compile(const KernelSource& source, const std::string& architecture) {
    const std::string target = "--gpu-architecture=" + architecture;
    std::vector<const char*> options = {target.c_str(), "--std=c++17"};
    for (const std::string& option : source.options) options.push_back(option.c_str());
    const nvrtcResult result = api_.compile_program(program_, static_cast<int>(options.size()), options.data());
    CompiledCode code;
    code.log = text(api_.log_size, api_.log).c_str();  // without the zero behind it
    check(result, fmt::format("{}: {}", source.function, code.log));
    code.binary = text(api_.cubin_size, api_.cubin);
    return code;
  }

 private:
  void check(nvrtcResult result, const std::string& of) const {
    if (result == NVRTC_SUCCESS) return;
    throw DeviceError({.what = fmt::format("NVRTC could not compile {} ({})", of, api_.error_string(result)),
                       .fix = "report this, with the version of CUDA that torch was built for"});
  }

  template <class Size, class Get>
  std::string text(Size size, Get get) const {
    std::size_t length = 0;
    if (size(program_, &length) != NVRTC_SUCCESS) return "";
    std::string result(length, '\0');
    if (get(program_, result.data()) != NVRTC_SUCCESS) return "";
    return result;
  }

  const Nvrtc& api_;
  nvrtcProgram program_ = nullptr;
};

// A thread that the runtime has not been called on has no context.
void ensure_context(const Driver& driver) {
  CUcontext context = nullptr;
  check(driver.ctx_get_current(&context), "cuCtxGetCurrent");
  if (context != nullptr) return;
  check(static_cast<CUresult>(cudaSetDevice(current_cuda_device())), "cudaSetDevice");
}

std::string architecture_of_current_device(const Driver& driver) {
  CUdevice device = 0;
  check(driver.ctx_get_device(&device), "cuCtxGetDevice");
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    check(driver.device_get_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  return fmt::format("sm_{}{}", attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                     attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

}  // namespace

int current_cuda_device() {
  int device = 0;
  check(static_cast<CUresult>(cudaGetDevice(&device)), "cudaGetDevice");
  return device;
}

bool has_compiler() noexcept { return nvrtc().is_whole; }

bool can_compile_for(int architecture) noexcept {
  static const std::vector<int> known = [] {
    int count = 0;
    if (!has_compiler() || nvrtc().count_architectures(&count) != NVRTC_SUCCESS) return std::vector<int>();
    std::vector<int> all(static_cast<std::size_t>(count));
    if (nvrtc().architectures(all.data()) != NVRTC_SUCCESS) all.clear();
    return all;
  }();
  return std::find(known.begin(), known.end(), architecture) != known.end();
}

CompiledCode compile(const KernelSource& source, const std::string& architecture) {
  return Program(source).compile(source, architecture);
}

CUfunction load_kernel(const KernelSource& source) {
  const Driver& driver = Driver::get();
  ensure_context(driver);
  const CompiledCode code = compile(source, architecture_of_current_device(driver));
  const RelaxedCaptureMode relaxed(driver);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  check(driver.module_load_data(&module, code.binary.data()), "cuModuleLoadData");
  check(driver.module_get_function(&function, module, source.function), "cuModuleGetFunction");
  return function;
}

void launch_kernel(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream, void** arguments) {
  const Driver& driver = Driver::get();
  ensure_context(driver);
  check(driver.launch_kernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
}

}  // namespace pianola
