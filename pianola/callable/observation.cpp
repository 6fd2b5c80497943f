#include <pianola/callable/observation.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace pianola::callable {
namespace {

GraphedKind kind_of(const CallWatch& watch, const std::vector<at::Tensor>& results) {
  if (watch.trains() || results.empty()) return GraphedKind::step;
  const bool differentiable =
      std::any_of(results.begin(), results.end(), [](const at::Tensor& result) { return result.requires_grad(); });
  return differentiable ? GraphedKind::autograd : GraphedKind::inference;
}

// Without inputs, that of the tensors that it reads; numbers on the CPU do not count where there is a device.
c10::Device device_of(const CallWatch& watch, std::span<const at::Tensor> inputs) {
  if (!inputs.empty()) return inputs.front().device();
  for (const at::Tensor& tensor : watch.outside()) {
    if (!tensor.device().is_cpu()) return tensor.device();
  }
  return c10::Device(c10::kCPU);
}

UsageError frozen(std::string difference) {
  return UsageError({.what = std::move(difference) + "; a graph would repeat the last one for ever",
                     .fix = "keep a number that changes in a tensor on the device",
                     .rule = "PG301"});
}

std::string obstacle_of(const ObservedRun& run) {
  if (run.odd_work()) return CaptureError(run.odd_work()->diagnosis()).what();
  const at::Tensor* dropped = run.watch().dropped();
  if (dropped == nullptr) return {};
  return Error({.what =
                    fmt::format("the function reads a {} tensor of shape [{}] that is gone after the call: it replaces "
                                "it, or makes it from memory of the host; a graph would read the same one for ever",
                                c10::toString(dropped->scalar_type()), fmt::join(dropped->sizes(), ", ")),
                .fix = "pass it as an input, or keep one tensor and write into it (copy_())",
                .rule = "PG401"})
      .what();
}

}  // namespace

Observation::Observation(ObservedRun run, std::span<const at::Tensor> inputs, const std::vector<at::Tensor>& results)
    : kind_(kind_of(run.watch(), results)),
      device_(device_of(run.watch(), inputs)),
      obstacle_(run.failure().empty() ? obstacle_of(run) : run.failure()),
      numbers_(std::move(run.numbers())) {
  for (const at::Tensor& leaf : run.watch().leaves()) leaves_.emplace_back(leaf.getIntrusivePtr());
}

std::vector<at::Tensor> Observation::leaves() const {
  std::vector<at::Tensor> result;
  for (const graph::WeakTensor& weak : leaves_) {
    if (auto leaf = weak.lock()) result.emplace_back(std::move(leaf));
  }
  return result;
}

void Observation::compare(const Observation& before) {
  if (!obstacle_.empty()) return;
  if (auto difference = NumberLog::difference(before.numbers_, numbers_))
    obstacle_ = frozen(*std::move(difference)).what();
}

void Observation::check_numbers(const NumberLog& now) const {
  if (auto difference = NumberLog::difference(numbers_, now)) throw frozen(*std::move(difference));
}

}  // namespace pianola::callable
