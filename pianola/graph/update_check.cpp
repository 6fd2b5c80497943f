#include <pianola/graph/update_check.hpp>

#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pianola::graph {
namespace {

// A view made of memory of its own is no view (an operator may copy where it cannot alias).
bool is_repeated(const OpTrace& trace, const OpRecord& op) {
  if (op.info->is_empty) return false;
  const auto outputs = trace.outputs(op);
  return !op.info->is_view ||
         std::any_of(outputs.begin(), outputs.end(), [](const TensorRecord& output) { return output.written; });
}

Diagnosis other_step(std::string what, std::string where) {
  return {.what = "update() was given a step of other operations: " + std::move(what) +
                  "; the earlier capture stays, and replays as before",
          .where = std::move(where),
          .fix = kCaptureAnew};
}

}  // namespace

std::vector<const OpRecord*> repeated_operations(const OpTrace& trace) {
  std::vector<const OpRecord*> repeated;
  for (const OpRecord& op : trace.ops()) {
    if (is_repeated(trace, op)) repeated.push_back(&op);
  }
  return repeated;
}

std::string place_of(const OpTrace& trace, const OpRecord& op, std::string_view whose) {
  const std::string place = trace.place(op);
  const auto number = &op - trace.ops().data() + 1;
  return fmt::format("operation {} of {}{}{}", number, whose, place.empty() ? "" : ", ", place);
}

std::optional<Diagnosis> other_operations(const OpTrace& captured, const OpTrace& now) {
  const std::vector<const OpRecord*> before = repeated_operations(captured), after = repeated_operations(now);
  const auto [was, is] =
      std::mismatch(before.begin(), before.end(), after.begin(), after.end(),
                    [](const OpRecord* one, const OpRecord* other) { return one->info->computes_as(*other->info); });
  if (was == before.end() && is == after.end()) return std::nullopt;
  if (is == after.end()) {
    return other_step(fmt::format("it ends before {}, which was captured", captured.name(**was)),
                      place_of(captured, **was, "the earlier capture"));
  }
  std::string what = was == before.end()
                         ? fmt::format("{} comes behind the last one that was captured", now.name(**is))
                         : fmt::format("{} stands where {} was captured", now.name(**is), captured.name(**was));
  return other_step(std::move(what), place_of(now, **is));
}

}  // namespace pianola::graph
