#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/producers.hpp>
#include <pianola/audit/words.hpp>
#include <pianola/graph/offence.hpp>
#include <pianola/trace/host_read.hpp>
#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace pianola::auditing {
namespace {

bool touches_device(const ObservedRuns& runs, OpAt at) {
  const auto inputs = runs.inputs(at);
  return std::any_of(inputs.begin(), inputs.end(), [](const TensorRecord& input) { return input.device.is_cuda(); });
}

// A copy to the host waits, unless it is told not to and the memory is pinned. One that makes its own memory for that
// pins it.
bool copies_to_host(const ObservedRuns& runs, OpAt at) {
  const OpRecord& op = runs.op(at);
  const auto inputs = runs.inputs(at);
  const auto scalars = runs.run(at.run).trace.scalars(op);
  const auto asynchronous = [&] {
    return std::any_of(scalars.begin(), scalars.end(), [&](const ScalarRecord& scalar) {
      const bool* flag = std::get_if<bool>(&scalar.value);
      return flag != nullptr && *flag && argument_name(op, scalar.argument) == "non_blocking";
    });
  };
  if (op.info->name == "aten::_to_copy") {
    const auto outputs = runs.outputs(at);
    return inputs.size() == 1 && outputs.size() == 1 && inputs[0].device.is_cuda() && outputs[0].device.is_cpu() &&
           !asynchronous();
  }
  return op.info->name == "aten::copy_" && inputs.size() == 2 && inputs[0].device.is_cpu() &&
         inputs[1].device.is_cuda() && !(asynchronous() && runs.note(at).pinned_host);
}

// Reads of the library's own helpers have advice of their own.
std::string_view helper_rule(const ObservedRuns& runs, OpAt at) {
  if (runs.called_from(at, "torch/nn/utils/clip_grad.py", "clip_grad_norm_")) return "PG1003";
  if (runs.called_from(at, "torch/amp/grad_scaler.py", "")) return "PG1002";
  if (runs.called_from(at, "torch/_tensor_str.py", "at::print")) return "PG104";
  if (runs.called_by_optimizer(at)) return "PG1001";
  return "";
}

std::string rule_of(const ObservedRuns& runs, OpAt at, bool copy) {
  if (const std::string_view helper = helper_rule(runs, at); !helper.empty()) return std::string(helper);
  if (copy) return "PG103";
  const OpRecord& op = runs.op(at);
  if (op.backward && !runs.in_custom_backward(at)) return "PG111";
  graph::OffendingOp offender{};
  offender.name = runs.op_name(at);
  offender.info = op.info;
  std::string rule = graph::host_read_rule(offender);
  if ((rule == "PG101" || rule == "PG102") && reads_nan_check(runs, at)) return "PG112";
  return rule;
}

// Anomaly mode reads after every backward operation; that it is on is a finding of its own.
bool is_of_anomaly_mode(const ObservedRuns& runs, OpAt at) {
  if (!runs.run(at.run).anomaly_op) return false;
  const auto inputs = runs.inputs(at);
  if (inputs.empty()) return false;
  const auto producer = producer_of(runs, at, inputs[0]);
  return producer && runs.op(*producer).info->name == "aten::_is_any_true";
}

std::string evidence_of(const ObservedRuns& runs, OpAt at) {
  const auto inputs = runs.inputs(at);
  if (inputs.empty()) return "";
  const TensorRecord& read = inputs[inputs.size() > 1 && runs.op(at).info->name == "aten::copy_" ? 1 : 0];
  std::string text = "of " + tensor_words(runs, at, read);
  const auto producer = producer_of(runs, at, read);
  return producer ? fmt::format("{}, computed by {}", text, operation_at(runs, *producer)) : text;
}

std::string what_of(const ObservedRuns& runs, OpAt at, const Finding& finding, bool copy) {
  if (copy) return fmt::format("{} copies a tensor to the host", finding.op);
  std::string what = fmt::format("{} {}", finding.op, trace::why_host(runs.op(at).info->host_read));
  if (runs.op(at).backward) {
    what += fmt::format(", in the backward pass ({})", runs.run(at.run).nodes[runs.note(at).node]);
  }
  return what;
}

enum class HostRead { none, value, copy };

HostRead host_read_of(const ObservedRuns& runs, OpAt at) {
  const bool copy = runs.on_cuda() && copies_to_host(runs, at);
  const bool read = runs.op(at).host_read && (!runs.on_cuda() || touches_device(runs, at));
  if ((!copy && !read) || is_of_anomaly_mode(runs, at)) return HostRead::none;
  return copy ? HostRead::copy : HostRead::value;
}

}  // namespace

Findings check_host_reads(const ObservedRuns& runs) {
  Findings findings;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    for (std::size_t op = 0; op < runs.run(run).notes.size(); ++op) {
      const OpAt at{run, op};
      const HostRead kind = host_read_of(runs, at);
      if (kind == HostRead::none) continue;
      const bool copy = kind == HostRead::copy;
      Finding finding = runs.finding(rule_of(runs, at, copy), at);
      finding.what = what_of(runs, at, finding, copy);
      finding.evidence = evidence_of(runs, at);
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

std::vector<AuditCut> find_cuts(const ObservedRuns& runs) {
  std::vector<AuditCut> cuts;
  if (runs.size() == 0) return cuts;
  std::size_t before = 0;
  for (std::size_t op = 0; op < runs.run(runs.size() - 1).notes.size(); ++op) {
    const OpAt at{runs.size() - 1, op};
    // What optimizers count on the host is followed by replays.
    if (host_read_of(runs, at) == HostRead::none || runs.called_by_optimizer(at)) {
      ++before;
      continue;
    }
    Finding finding = runs.finding("PG101", at);
    cuts.push_back(
        {.op = std::move(finding.op), .place = std::move(finding.place), .before = std::exchange(before, 0)});
  }
  return cuts;
}

}  // namespace pianola::auditing
