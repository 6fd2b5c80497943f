#include <pianola/audit/words.hpp>

#include <pianola/trace/describe.hpp>
#include <pianola/trace/op_info.hpp>

#include <c10/core/ScalarType.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

namespace pianola::auditing {
namespace {

template <typename T>
std::string list_of(const std::string& bytes) {
  constexpr std::size_t kMany = 8;
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  if (values.size() == 1) return fmt::format("{}", values[0]);
  const std::size_t shown = std::min(values.size(), kMany);
  return fmt::format("[{}{}]", fmt::join(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < values.size() ? ", ..." : "");
}

}  // namespace

std::string listed(std::span<const std::int64_t> numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

std::string described(const OpTrace& trace, const TensorRecord& tensor) {
  return trace::type_of(tensor.dtype, trace.sizes(tensor));
}

std::string written_out(const ScalarRecord& number) {
  return std::visit([](auto value) { return fmt::format("{}", value); }, number.value);
}

std::string written_out(const HostValues& values) {
  switch (values.dtype) {
    case c10::kDouble:
      return list_of<double>(values.bytes);
    case c10::kFloat:
      return list_of<float>(values.bytes);
    case c10::kLong:
      return list_of<std::int64_t>(values.bytes);
    case c10::kInt:
      return list_of<std::int32_t>(values.bytes);
    case c10::kBool:
    case c10::kByte:
      return list_of<std::uint8_t>(values.bytes);
    default:
      return fmt::format("{} bytes of {}", values.bytes.size(), c10::toString(values.dtype));
  }
}

std::string argument_name(const OpRecord& op, int argument) {
  const auto& arguments = op.info->schema().arguments();
  const auto index = static_cast<std::size_t>(argument);
  return index < arguments.size() ? arguments[index].name() : fmt::format("argument {}", argument);
}

std::string address(const void* pointer) { return fmt::format("{}", pointer); }

std::string operation_at(const ObservedRuns& runs, OpAt at) {
  const std::string place = runs.place(at).text();
  return place.empty() ? runs.op_name(at) : fmt::format("{} ({})", runs.op_name(at), place);
}

std::string iteration(std::size_t run) { return fmt::format("iteration {}", run + 1); }

std::string counted(std::size_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string tensor_words(const ObservedRuns& runs, OpAt at, const TensorRecord& tensor) {
  const ObservedRun& run = runs.run(at.run);
  if (const auto input = run.input_at(tensor.storage, tensor.address)) return fmt::format("input {}", *input);
  if (const std::string name = run.name_of(tensor.storage, tensor.address); !name.empty()) return "'" + name + "'";
  for (const GradientNote& gradient : run.gradients) {
    if (tensor.storage == nullptr || gradient.before.identity != tensor.storage) continue;
    const std::string leaf = run.name_of(gradient.leaf_memory.identity, nullptr);
    return leaf.empty() ? "the gradient of a leaf" : fmt::format("the gradient of '{}'", leaf);
  }
  return fmt::format("a {} tensor", described(run.trace, tensor));
}

}  // namespace pianola::auditing
