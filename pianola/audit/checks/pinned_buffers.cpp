#include <pianola/audit/checks/checks.hpp>

#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace pianola::auditing {
namespace {

bool is_written_by_the_step(const OpTrace& trace, const void* storage) {
  return std::any_of(trace.ops().begin(), trace.ops().end(), [&](const OpRecord& op) {
    const auto inputs = trace.inputs(op);
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const TensorRecord& input) { return input.written && input.storage == storage; });
  });
}

// How often the host memory that an operation copies from was written since the run before. The version counter moves
// with every write that torch knows of; writes through NumPy it does not know.
std::optional<std::uint32_t> writes_since(const ObservedRuns& runs, OpAt before, OpAt now) {
  const auto was = runs.inputs(before), is = runs.inputs(now);
  for (std::size_t i = 0; i < is.size() && i < was.size(); ++i) {
    const bool same = is[i].storage != nullptr && is[i].storage == was[i].storage && !is[i].made_in_step;
    if (!same || !is[i].device.is_cpu() || is[i].number) continue;
    if (is[i].version != was[i].version && !is_written_by_the_step(runs.run(before.run).trace, is[i].storage))
      return is[i].version - was[i].version;
  }
  return std::nullopt;
}

}  // namespace

Findings check_pinned_buffers(const ObservedRuns& runs) {
  Findings findings;
  if (!runs.on_cuda()) return findings;
  for (const RunPair& pair : runs.pairs()) {
    if (pair.b != pair.a + 1) continue;
    for (std::size_t op = 0; op < pair.alignment.ops; ++op) {
      const OpAt before{pair.a, op}, now{pair.b, op};
      if (!runs.note(now).pinned_host) continue;
      const auto writes = writes_since(runs, before, now);
      if (!writes) continue;
      Finding finding = runs.finding("PG206", now);
      finding.what = fmt::format("{} copies from pinned memory that is written between iterations", runs.op_name(now));
      finding.evidence = fmt::format("written {} times between iterations {} and {}", *writes, pair.a + 1, pair.b + 1);
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

}  // namespace pianola::auditing
