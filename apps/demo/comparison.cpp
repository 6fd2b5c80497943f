#include <apps/demo/comparison.hpp>

#include <pianola/core/error.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>

#include <fmt/format.h>

namespace pianola::demo {
namespace {

std::string describe_difference(const std::string& name, const at::Tensor& expected, const at::Tensor& actual) {
  if (!expected.sizes().equals(actual.sizes())) return fmt::format("{}: the shapes differ", name);
  const at::Tensor differs = expected.ne(actual).flatten();
  const at::Tensor distance = (expected.to(at::kDouble) - actual.to(at::kDouble)).abs();
  return fmt::format("{}: {} of {} values differ, first at {}, by at most {:.3g}", name,
                     differs.sum().item<std::int64_t>(), differs.numel(),
                     differs.to(at::kByte).argmax().item<std::int64_t>(), distance.max().item<double>());
}

}  // namespace

Comparison compare(const std::vector<NamedTensor>& expected, const std::vector<NamedTensor>& actual) {
  const c10::NoGradGuard no_grad;
  if (expected.size() != actual.size()) {
    throw UsageError({.what = fmt::format("states of {} and {} tensors", expected.size(), actual.size())});
  }
  Comparison result;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, tensor] = expected[i];
    if (name != actual[i].name) throw UsageError({.what = fmt::format("'{}' against '{}'", name, actual[i].name)});
    ++result.tensors;
    result.values += static_cast<std::size_t>(tensor.numel());
    if (at::equal(tensor, actual[i].tensor)) continue;
    if (result.equal()) result.first = describe_difference(name, tensor, actual[i].tensor);
    ++result.unequal;
  }
  return result;
}

}  // namespace pianola::demo
