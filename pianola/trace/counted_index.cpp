#include <pianola/trace/counted_index.hpp>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

namespace pianola::trace {
namespace {

// Parts of the names of torch's operators that reach memory by numbers they are given.
constexpr std::array<std::string_view, 9> kIndexing = {"index", "gather",   "scatter", "embedding", "take",
                                                       "put",   "nll_loss", "unpool",  "attention"};

bool is_whole(const TensorRecord& tensor) { return c10::isIntegralType(tensor.dtype, /*includeBool=*/false); }

bool may_index(std::string_view name) {
  if (!name.starts_with("aten::")) return true;  // nobody knows
  return std::ranges::any_of(kIndexing,
                             [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

// Or a single number, which may be made one.
bool may_count(const TensorRecord& tensor) { return is_whole(tensor) || tensor.span_bytes <= sizeof(double); }

std::unordered_set<const void*> counters_of(const OpTrace& trace) {
  std::unordered_set<const void*> counters;
  for (const OpRecord& op : trace.ops()) {
    for (const TensorRecord& input : trace.inputs(op)) {
      if (input.written && !input.made_in_step && may_count(input)) counters.insert(input.storage);
    }
  }
  return counters;
}

}  // namespace

std::string index_that_is_counted(const OpTrace& trace) {
  std::unordered_set<const void*> counted = counters_of(trace);
  counted.erase(nullptr);
  if (counted.empty()) return "";
  for (const OpRecord& op : trace.ops()) {
    const auto inputs = trace.inputs(op);
    const auto follows = [&](const TensorRecord& input) { return counted.contains(input.storage); };
    if (std::ranges::none_of(inputs, follows)) continue;
    const std::string name = trace.name(op);
    if (may_index(name) &&
        std::ranges::any_of(inputs, [&](const auto& input) { return follows(input) && is_whole(input); }))
      return name;
    for (const TensorRecord& output : trace.outputs(op)) counted.insert(output.storage);
    for (const TensorRecord& input : inputs) {
      if (input.written) counted.insert(input.storage);
    }
    counted.erase(nullptr);
  }
  return "";
}

}  // namespace pianola::trace
