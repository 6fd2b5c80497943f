#include <pianola/audit/producers.hpp>

#include <pianola/trace/op_info.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace pianola::auditing {
namespace {

constexpr std::array<std::string_view, 5> kChecks = {"aten::isnan", "aten::isinf", "aten::isfinite", "aten::isneginf",
                                                     "aten::isposinf"};

// What people put between the check and the read.
constexpr std::array<std::string_view, 22> kHandOn = {
    "aten::any",         "aten::all",         "aten::logical_not", "aten::logical_or",  "aten::logical_and",
    "aten::logical_xor", "aten::bitwise_not", "aten::bitwise_or",  "aten::bitwise_and", "aten::sum",
    "aten::max",         "aten::min",         "aten::amax",        "aten::amin",        "aten::stack",
    "aten::cat",         "aten::_to_copy",    "aten::copy_",       "aten::clone",       "aten::count_nonzero",
    "aten::gt",          "aten::_is_any_true"};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool writes(const ObservedRuns& runs, OpAt at, const void* storage) {
  const auto into = [&](const TensorRecord& record) { return record.written && record.storage == storage; };
  const auto inputs = runs.inputs(at);
  const auto outputs = runs.outputs(at);
  return std::any_of(inputs.begin(), inputs.end(), into) || std::any_of(outputs.begin(), outputs.end(), into);
}

bool is_check(const ObservedRuns& runs, OpAt at) {
  const std::string_view name = runs.op(at).info->schema().name();
  const char* caller = runs.note(at).caller;
  if (contains(kChecks, name) || (caller != nullptr && contains(kChecks, caller))) return true;
  const auto inputs = runs.inputs(at);
  return name == "aten::ne" && inputs.size() == 2 && inputs[0].address == inputs[1].address &&
         inputs[0].address != nullptr;
}

bool hands_on(const ObservedRuns& runs, OpAt at) {
  return runs.op(at).info->is_view || contains(kHandOn, runs.op(at).info->schema().name());
}

}  // namespace

std::optional<OpAt> producer_of(const ObservedRuns& runs, OpAt at, const TensorRecord& tensor) {
  if (tensor.storage == nullptr) return std::nullopt;
  for (std::size_t before = at.op; before-- > 0;) {
    if (writes(runs, {at.run, before}, tensor.storage)) return OpAt{at.run, before};
  }
  return std::nullopt;
}

bool reads_nan_check(const ObservedRuns& runs, OpAt at) {
  constexpr std::size_t kFar = 32;  // operations that are looked at
  std::vector<OpAt> open = {at};
  for (std::size_t looked = 0; looked < open.size() && looked < kFar; ++looked) {
    for (const TensorRecord& input : runs.inputs(open[looked])) {
      const auto producer = producer_of(runs, open[looked], input);
      if (!producer) continue;
      if (is_check(runs, *producer)) return true;
      if (hands_on(runs, *producer)) open.push_back(*producer);
    }
  }
  return false;
}

}  // namespace pianola::auditing
