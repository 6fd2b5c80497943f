#include <pianola/callable/ambient.hpp>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <fmt/format.h>

namespace pianola::callable {
namespace {

std::string autocast_text(const Ambient& ambient) {
  return ambient.autocast ? c10::toString(ambient.autocast_dtype) : "off";
}

void compare(const char* name, bool captured, bool now, std::vector<std::string>& result) {
  const auto text = [](bool on) { return on ? "on" : "off"; };
  if (captured != now) result.push_back(fmt::format("{}: captured {}, now {}", name, text(captured), text(now)));
}

}  // namespace

Ambient Ambient::current(c10::DeviceType device) {
  const at::Context& context = at::globalContext();
  Ambient now;
  now.autocast = at::autocast::is_autocast_enabled(device);
  if (now.autocast) now.autocast_dtype = at::autocast::get_autocast_dtype(device);
  now.deterministic = context.deterministicAlgorithms();
  if (device == c10::kCUDA) {
    // Not allowTF32CuBLAS(), which throws where a program uses both of torch's interfaces to these settings.
    using at::Float32Backend, at::Float32Op, at::Float32Precision;
    now.tf32_matmul = context.float32Precision(Float32Backend::CUDA, Float32Op::MATMUL) == Float32Precision::TF32;
    now.tf32_convolution = context.float32Precision(Float32Backend::CUDA, Float32Op::CONV) == Float32Precision::TF32;
    now.cudnn_benchmark = context.benchmarkCuDNN();
  }
  return now;
}

std::vector<std::string> Ambient::differences(const Ambient& now) const {
  std::vector<std::string> result;
  if (autocast != now.autocast || autocast_dtype != now.autocast_dtype) {
    result.push_back(fmt::format("autocast: captured {}, now {}", autocast_text(*this), autocast_text(now)));
  }
  compare("deterministic algorithms", deterministic, now.deterministic, result);
  compare("TF32 in matrix products", tf32_matmul, now.tf32_matmul, result);
  compare("TF32 in convolutions", tf32_convolution, now.tf32_convolution, result);
  compare("cuDNN benchmark", cudnn_benchmark, now.cudnn_benchmark, result);
  return result;
}

AutocastOff::AutocastOff(c10::DeviceType device) : device_(device), was_on_(at::autocast::is_autocast_enabled(device)) {
  if (was_on_) at::autocast::set_autocast_enabled(device_, false);
}

AutocastOff::~AutocastOff() {
  if (was_on_) at::autocast::set_autocast_enabled(device_, true);
}

}  // namespace pianola::callable
