#include <pianola/callable/observation.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/describe.hpp>

#include <fmt/format.h>

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

std::string text_of(const std::optional<Diagnosis>& diagnosis) {
  return diagnosis ? UsageError(*diagnosis).what() : std::string();
}

std::optional<Diagnosis> dropped_tensor(const CallWatch& watch, const trace::OperationLog& log) {
  const std::optional<CallWatch::Use> dropped = watch.dropped();
  if (!dropped) return std::nullopt;
  const at::Tensor& tensor = dropped->tensor;
  const std::string place = log.site_of(dropped->operation).describe();
  return Diagnosis{.what = fmt::format("the function reads {} that is gone after the call (replaced, or made "
                                       "from memory of the host); a graph would read the same one for ever",
                                       trace::describe(tensor)),
                   .where = fmt::format("operation {} of the step, {}{}{}", dropped->position, dropped->info->name,
                                        place.empty() ? "" : ", ", place),
                   .fix = "pass it as an input, or keep one tensor and write into it (copy_())",
                   .rule = "PG401"};
}

std::optional<Diagnosis> written_input(const CallWatch& watch, GraphedKind kind) {
  const auto input = watch.written_input();
  if (!input) return std::nullopt;
  return Diagnosis{
      .what = fmt::format(
          "the {} writes input {} in place; the caller's tensor would not change, because the graph works on a copy",
          kind == GraphedKind::step ? "step" : "function", *input),
      .fix = "let it work on input.clone(), and return the result",
      .rule = "PG902"};
}

// The first of them that there is.
std::string first_of(std::initializer_list<std::string> texts) {
  const auto found = std::find_if(texts.begin(), texts.end(), [](const std::string& text) { return !text.empty(); });
  return found == texts.end() ? std::string() : *found;
}

}  // namespace

Observation::Observation(EagerRun run, const HostEffects& effects, std::span<const at::Tensor> inputs,
                         const std::vector<at::Tensor>& results)
    : kind_(kind_of(run.watch(), results)),
      device_(device_of(run.watch(), inputs)),
      kept_(run, inputs, results, effects.remade),
      backwards_(kind_ == GraphedKind::autograd ? CustomBackwards(results) : CustomBackwards()),
      lasting_(
          first_of({run.failure(), run.odd_work() ? CaptureError(run.odd_work()->diagnosis()).what() : std::string(),
                    effects.lasting, text_of(run.host().draws(device_)),
                    text_of(device_.is_cpu() ? std::nullopt : run.watch().host_tensors().obstacle())})),
      passing_(first_of({text_of(run.host().reads(device_)), text_of(written_input(run.watch(), kind_)),
                         effects.passing, text_of(dropped_tensor(run.watch(), run.log()))})),
      dropout_(run.watch().dropout()),
      log_(std::move(run.log())) {
  for (const at::Tensor& leaf : run.watch().leaves()) leaves_.emplace_back(leaf.getIntrusivePtr());
}

std::vector<at::Tensor> Observation::leaves() const {
  std::vector<at::Tensor> result;
  for (const trace::WeakTensor& weak : leaves_) {
    if (auto leaf = weak.lock()) result.emplace_back(std::move(leaf));
  }
  return result;
}

std::string Observation::difference_from(const Observation& before) const {
  return text_of(trace::OperationLog::difference(before.log_, log_));
}

namespace {

void refuse(std::optional<Diagnosis> difference, bool any_path) {
  if (!difference || (any_path && difference->rule != "PG301")) return;
  throw OtherPath(*std::move(difference));
}

}  // namespace

void Observation::check_capture(const trace::OperationLog& capture, bool any_path) const {
  refuse(trace::OperationLog::difference_of_capture(log_, capture), any_path);
}

void Observation::check_captured_backwards(const CustomBackwards& capture, bool any_path) const {
  refuse(capture.difference_from(backwards_), any_path);
}

}  // namespace pianola::callable
