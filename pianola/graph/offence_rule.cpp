#include <pianola/graph/offence_rule.hpp>

#include <pianola/core/hazard_rule.hpp>
#include <pianola/trace/host_read.hpp>

#include <fmt/format.h>

namespace pianola::graph {

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
