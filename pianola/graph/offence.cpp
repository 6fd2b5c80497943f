#include <pianola/graph/offence.hpp>

#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::graph {
namespace {

std::string forward_place(const OpTrace* trace, std::int64_t sequence) {
  if (trace == nullptr || sequence < 0) return "";
  const auto ops = trace->ops();
  const auto forward =
      std::find_if(ops.begin(), ops.end(), [&](const OpRecord& op) { return !op.backward && op.sequence == sequence; });
  return forward == ops.end() ? "" : trace->place(*forward);
}

}  // namespace

OffendingOp OffendingOp::note(const trace::OpSpan& op, std::size_t number, const std::string& inner) {
  OffendingOp offender{.name = op.callers.empty() ? op.info->schema().name() : std::string(op.callers.front()),
                       .detail = inner,
                       .number = number,
                       .scope = {},
                       .backward = op.backward != nullptr ? op.backward->name : "",
                       .forward_sequence = op.backward != nullptr ? op.backward->sequence : -1,
                       .info = op.info,
                       .site = trace::CallSite::here()};
  if (offender.detail.empty()) offender.detail = op.info->schema().name();
  for (const std::string& scope : op.scopes) offender.scope += (offender.scope.empty() ? "" : "/") + scope;
  return offender;
}

std::string OffendingOp::where(const OpTrace* trace) const {
  std::string text = fmt::format("operation {} of the step", number);
  if (!detail.empty() && detail != name) text += fmt::format(" ({} inside {})", detail, name);
  if (!scope.empty()) text += fmt::format(", in scope '{}'", scope);
  if (!backward.empty()) text += fmt::format(", in the backward pass ({})", backward);
  const std::string forward = forward_place(trace, forward_sequence);
  const std::string place = forward.empty() ? site.describe() : "forward by " + forward;
  if (!place.empty()) text += ", " + place;
  return text;
}

}  // namespace pianola::graph
