#include <apps/script_module.hpp>

#include <pianola/core/error.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <map>
#include <system_error>
#include <utility>

namespace pianola::program {
namespace {

constexpr std::uint64_t kSeed = 1;
// TorchScript records types in its first run, and optimizes for them in the next ones.
constexpr int kRunsToSettle = 3;

[[noreturn]] void refuse(const std::string& text) {
  throw UsageError({.what = fmt::format("'{}' is no shape of an input", text),
                    .fix = "write 8x16, 8x16:float16 (bfloat16, float32, float64, bool), or 8x16:int64<100 (int32)"});
}

std::int64_t number_of(std::string_view digits, const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 1) refuse(text);
  return number;
}

c10::ScalarType dtype_named(std::string_view name, const std::string& text) {
  static const std::map<std::string_view, c10::ScalarType> known = {
      {"float16", at::kHalf}, {"bfloat16", at::kBFloat16}, {"float32", at::kFloat}, {"float64", at::kDouble},
      {"int32", at::kInt},    {"int64", at::kLong},        {"bool", at::kBool}};
  const auto found = known.find(name);
  if (found == known.end()) refuse(text);
  return found->second;
}

void collect(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const c10::IValue& entry : value.toTupleRef().elements()) collect(entry, tensors);
  } else if (value.isList()) {
    for (const c10::IValue& entry : value.toListRef()) collect(entry, tensors);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) collect(entry.value(), tensors);
  }
}

// Without torch's own stack.
std::string words_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error == nullptr ? error.what() : torch_error->what_without_backtrace();
}

void run_backward(const std::vector<at::Tensor>& results) {
  at::Tensor sum;
  for (const at::Tensor& result : results) {
    if (!result.requires_grad()) continue;
    const at::Tensor part = result.sum().to(at::kFloat);
    sum = sum.defined() ? sum.add(part) : part;
  }
  if (sum.defined()) sum.backward();
}

}  // namespace

InputShape InputShape::parse(const std::string& text) {
  std::string_view rest = text;
  InputShape shape;
  if (const auto bound = rest.find('<'); bound != std::string_view::npos) {
    shape.bound = number_of(rest.substr(bound + 1), text);
    rest = rest.substr(0, bound);
  }
  if (const auto dtype = rest.find(':'); dtype != std::string_view::npos) {
    shape.dtype = dtype_named(rest.substr(dtype + 1), text);
    rest = rest.substr(0, dtype);
  }
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('x'), rest.size());
    shape.sizes.push_back(number_of(rest.substr(0, end), text));
    if (end + 1 == rest.size()) refuse(text);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (shape.sizes.empty()) refuse(text);
  return shape;
}

ScriptModule::ScriptModule(const std::filesystem::path& file, c10::Device device, bool train)
    : device_(device), train_(train), name_(file.filename().string()) {
  const auto refuse_file = [&file](const std::string& reason) {
    throw UsageError({.what = fmt::format("cannot load '{}': {}", file.string(), reason.substr(0, reason.find('\n'))),
                      .fix = "pass a file that torch.jit.save() wrote"});
  };
  std::error_code unknown;
  const auto status = std::filesystem::status(file, unknown);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) refuse_file("it is no file");
  try {
    module_ = std::make_unique<torch::jit::Module>(torch::jit::load(file.string(), device));
  } catch (const std::exception& error) {
    refuse_file(words_of(error));
  }
  module_->train(train);
}

ScriptModule::~ScriptModule() = default;

std::vector<at::Tensor> ScriptModule::make_inputs(const std::vector<std::string>& shapes) const {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
  std::vector<at::Tensor> inputs;
  for (const std::string& text : shapes) {
    const InputShape shape = InputShape::parse(text);
    const bool whole = !c10::isFloatingType(shape.dtype);
    try {
      const at::Tensor values = whole ? at::randint(shape.dtype == at::kBool ? 2 : shape.bound, shape.sizes, generator)
                                      : at::randn(shape.sizes, generator);
      inputs.push_back(values.to(at::TensorOptions(device_).dtype(shape.dtype)));
    } catch (const std::exception& error) {
      const std::string said = words_of(error);
      throw UsageError({.what = fmt::format("cannot make an input of the shape {}: {}", fmt::join(shape.sizes, "x"),
                                            said.substr(0, said.find('\n'))),
                        .fix = "give the shape of one batch with --input"});
    }
  }
  return inputs;
}

std::vector<at::Tensor> ScriptModule::run(const std::vector<at::Tensor>& inputs) {
  const c10::AutoGradMode gradients(train_);
  if (train_) {
    for (at::Tensor parameter : module_->parameters()) parameter.mutable_grad() = at::Tensor();
  }
  std::vector<at::Tensor> results;
  collect(module_->forward({inputs.begin(), inputs.end()}), results);
  if (train_) run_backward(results);
  for (at::Tensor& result : results) result = result.detach();
  return results;
}

void ScriptModule::settle(const std::vector<at::Tensor>& inputs) {
  try {
    for (int run_number = 0; run_number < kRunsToSettle; ++run_number) (void)run(inputs);
  } catch (const std::exception& error) {
    throw UsageError({.what = fmt::format("'{}' does not run with these inputs: {}", name_, words_of(error)),
                      .fix = "give each argument of its forward() with --input, in order"});
  }
}

std::vector<NamedTensor> ScriptModule::state() const {
  std::vector<NamedTensor> named;
  for (const auto& parameter : module_->named_parameters()) named.push_back({parameter.name, parameter.value});
  for (const auto& buffer : module_->named_buffers()) named.push_back({buffer.name, buffer.value});
  return named;
}

}  // namespace pianola::program
