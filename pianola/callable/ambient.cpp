#include <pianola/callable/ambient.hpp>

#include <pianola/trace/numeric_region.hpp>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>

#include <fmt/format.h>

namespace pianola::callable {
namespace {

std::string autocast_text(const Ambient& ambient) {
  return ambient.autocast ? c10::toString(ambient.autocast_dtype) : "off";
}

std::string text_of(const std::optional<c10::Device>& device) { return device ? device->str() : "none"; }

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
  now.region = trace::NumericRegion::current_number();
  now.default_dtype = c10::get_default_dtype_as_scalartype();
  now.modes = trace::oddity_of_modes();
  now.function_modes = trace::function_modes();
  if (device == c10::kCUDA) {
    // Not allowTF32CuBLAS(), which throws where a program uses both of torch's interfaces to these settings.
    using at::Float32Backend, at::Float32Op, at::Float32Precision;
    now.tf32_matmul = context.float32Precision(Float32Backend::CUDA, Float32Op::MATMUL) == Float32Precision::TF32;
    now.tf32_convolution = context.float32Precision(Float32Backend::CUDA, Float32Op::CONV) == Float32Precision::TF32;
    now.cudnn_benchmark = context.benchmarkCuDNN();
  }
  return now;
}

trace::Oddity Ambient::oddity() const noexcept {
  if (modes != trace::Oddity::none) return modes;
  return function_modes.users ? trace::Oddity::function_mode : trace::Oddity::none;
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
  if (region != now.region) {
    result.push_back(fmt::format("region: captured in {}, now in {}", trace::NumericRegion::words_of(region),
                                 trace::NumericRegion::words_of(now.region)));
  }
  if (default_dtype != now.default_dtype) {
    result.push_back(fmt::format("default dtype: captured {}, now {}", c10::toString(default_dtype),
                                 c10::toString(now.default_dtype)));
  }
  if (function_modes.default_device != now.function_modes.default_device) {
    result.push_back(fmt::format("default device: captured {}, now {}", text_of(function_modes.default_device),
                                 text_of(now.function_modes.default_device)));
  }
  if (modes != now.modes || function_modes.users != now.function_modes.users) {
    const trace::Oddity odd = now.oddity();
    result.push_back(odd == trace::Oddity::none
                         ? "a mode of torch: captured under one, now without"
                         : fmt::format("a mode of torch: captured without, now called {}", trace::modes_in_words(odd)));
  }
  return result;
}

AutocastOff::AutocastOff(c10::DeviceType device) : device_(device), was_on_(at::autocast::is_autocast_enabled(device)) {
  if (was_on_) at::autocast::set_autocast_enabled(device_, false);
}

AutocastOff::~AutocastOff() {
  if (was_on_) at::autocast::set_autocast_enabled(device_, true);
}

}  // namespace pianola::callable
