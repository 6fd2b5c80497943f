#include "layers.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>

#include <cmath>

namespace pianola::bench {

InitialValues::InitialValues(c10::Device device)
    : generator_(at::detail::createCPUGenerator(/*seed_val=*/1)), device_(device) {}

at::Tensor InitialValues::normal(at::IntArrayRef sizes, double scale) {
  return at::randn(sizes, generator_).mul_(scale).to(device_);
}

Linear::Linear(InitialValues& values, std::int64_t inputs, std::int64_t outputs) {
  const double scale = std::sqrt(2.0 / static_cast<double>(inputs));
  weight_ = register_parameter("weight", values.normal({outputs, inputs}, scale));
  bias_ = register_parameter("bias", values.normal({outputs}, 0.1));
}

at::Tensor Linear::forward(const at::Tensor& input) { return at::linear(input, weight_, bias_); }

}  // namespace pianola::bench
