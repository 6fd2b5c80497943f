#include <pianola/graph/offence.hpp>

#include <pianola/core/hazard_rule.hpp>
#include <pianola/trace/host_read.hpp>
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

// As the trace noted it when the operation began.
std::string recorded_place(const OpTrace* trace, std::size_t number) {
  if (trace == nullptr || number == 0 || number > trace->ops().size()) return "";
  return trace->place(trace->ops()[number - 1]);
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
  const std::string here = site.empty() ? recorded_place(trace, number) : site.describe();
  const std::string place = forward.empty() ? here : "forward by " + forward;
  if (!place.empty()) text += ", " + place;
  return text;
}

Diagnosis explain_moved_generator(const std::optional<OffendingOp>& drawing, const OpTrace* trace) {
  return {
      .what = "a generator was seeded or its state was set, which is not allowed during capture",
      .where = drawing ? fmt::format("before {}, {}", drawing->name, drawing->where(trace))
                       : "after the last operation that draws from it",
      .fix =
          "seed before the capture; if torch.utils.checkpoint recomputes a part that draws (dropout), capture forward "
          "and backward as one graph on CUDA, or leave the part out",
      .rule = "PG602"};
}

Diagnosis explain_unknown_generator(const std::string& operation, std::string where) {
  return {.what = fmt::format("{} draws from a generator that the graph does not know", operation),
          .where = std::move(where),
          .fix =
              "name it in CaptureOptions::generators; seeding and reading a generator's state belong outside the "
              "captured part",
          .rule = "PG601"};
}

using trace::HostRead;

std::string host_read_rule(const OffendingOp& offender) {
  if (!offender.backward.empty()) return "PG111";
  switch (offender.info->host_read) {
    case HostRead::dynamic_shape:
      return "PG105";
    case HostRead::bool_index:
    case HostRead::bool_index_put:
      return "PG106";
    case HostRead::repeats_tensor:
      return "PG107";
    case HostRead::always:
    case HostRead::never:
      break;
  }
  // The name is how the user called it: repeat_interleave and unique read a count on their way.
  if (offender.name == "aten::is_nonzero") return "PG102";
  if (offender.name.starts_with("aten::repeat_interleave")) return "PG107";
  if (offender.name.starts_with("aten::unique")) return "PG105";
  return "PG101";
}

Diagnosis explain_host_read(const OffendingOp& offender, const OpTrace* trace) {
  const std::string rule = host_read_rule(offender);
  return {.what = fmt::format("{} {}, which is not allowed during capture", offender.name,
                              trace::why_host(offender.info->host_read)),
          .where = offender.where(trace),
          .fix = std::string(hazard_rule(rule).fix),
          .rule = rule};
}

Diagnosis explain_host_copy(const OffendingOp& offender, const OpTrace* trace) {
  return {
      .what = fmt::format("{} copies between host and device and waits for it, which is not allowed during capture",
                          offender.name),
      .where = offender.where(trace),
      .fix =
          "copy before or after the capture, or from pinned memory with non_blocking; printing a tensor and .cpu() are "
          "such copies too",
      .rule = "PG103"};
}

}  // namespace pianola::graph
