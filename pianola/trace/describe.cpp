#include <pianola/trace/describe.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pianola::trace {
namespace {

std::string shape_of(c10::IntArrayRef sizes) { return fmt::format("[{}]", fmt::join(sizes, ", ")); }

}  // namespace

std::string type_of(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  return fmt::format("{} {}", c10::toString(dtype), shape_of(sizes));
}

std::string describe(const at::Tensor& tensor) {
  return fmt::format("a {} tensor of shape {}", c10::toString(tensor.scalar_type()), shape_of(tensor.sizes()));
}

std::string describe_parameter(const at::Tensor& parameter, std::string_view name) {
  const std::string_view known = name.empty() ? std::string_view(parameter.name()) : name;
  return fmt::format("a {} parameter{} of shape {}", c10::toString(parameter.scalar_type()),
                     known.empty() ? "" : fmt::format(" '{}'", known), shape_of(parameter.sizes()));
}

}  // namespace pianola::trace
