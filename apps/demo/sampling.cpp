#include <apps/demo/sampling.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

namespace pianola::demo {
namespace {

// Logits of the character after `tokens`, on the host.
at::Tensor next_logits(const CharGpt& model, const std::vector<std::int64_t>& tokens, c10::Device device) {
  const std::size_t length = std::min(tokens.size(), static_cast<std::size_t>(model.config().context));
  const at::ArrayRef<std::int64_t> window(tokens.data() + (tokens.size() - length), length);
  const at::Tensor input = at::tensor(window, at::kLong).to(device).unsqueeze(0);
  return model.logits(input, CharGpt::Mode::evaluate).select(1, -1).squeeze(0).to(at::kCPU);
}

}  // namespace

std::string sample(const CharGpt& model, const Text& text, std::string_view prompt, const SamplingOptions& options) {
  const c10::NoGradGuard no_grad;
  const c10::Device device = model.parameters().front().tensor.device();
  const at::Generator generator = at::detail::createCPUGenerator(options.seed);
  std::vector<std::int64_t> tokens = text.encode(prompt);
  if (tokens.empty()) tokens.push_back(0);
  for (std::int64_t written = 0; written < options.length; ++written) {
    const at::Tensor chances = at::softmax(next_logits(model, tokens, device) / options.temperature, -1);
    tokens.push_back(at::multinomial(chances, 1, false, generator).item<std::int64_t>());
  }
  std::string written;
  for (const std::int64_t token : tokens) written += text.symbol(token);
  return written;
}

}  // namespace pianola::demo
