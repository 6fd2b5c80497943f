#include <pianola/callable/graphed_info.hpp>

#include <pianola/callable/branch_table.hpp>

#include <fmt/format.h>

#include <utility>

namespace pianola {

std::string_view to_string(GraphedKind kind) noexcept {
  switch (kind) {
    case GraphedKind::undecided:
      return "undecided";
    case GraphedKind::inference:
      return "inference";
    case GraphedKind::autograd:
      return "autograd";
    case GraphedKind::step:
      break;
  }
  return "step";
}

std::string_view to_string(GraphedState state) noexcept {
  switch (state) {
    case GraphedState::warming_up:
      return "warming up";
    case GraphedState::captured:
      return "captured";
    case GraphedState::eager:
      break;
  }
  return "eager";
}

Report GraphedInfo::report() const {
  const auto count = [](auto value) { return static_cast<std::int64_t>(value); };
  Report report("Graphed function");
  report.fact("signatures", "signatures", count(signatures.size())).fact("evictions", "evictions", count(evictions));
  report.fact("input_bytes", "static inputs", count(input_bytes), "bytes");
  ReportTable table("calls", "Calls by signature, the latest first",
                    {{"signature"}, {"kind"}, {"state"}, {"graphs"}, {"recaptures"}, {"replays"}, {"eager"}});
  callable::BranchTable branches("signature");
  std::vector<std::string> gains, misses;
  for (const SignatureInfo& one : signatures) {
    table.row({one.signature, std::string(to_string(one.kind)), std::string(to_string(one.state)), count(one.graphs),
               count(one.recaptures), count(one.replays), count(one.eager_calls)});
    for (const BranchInfo& graph : one.branches) branches.row(one.signature, graph);
    if (!one.gain.empty()) gains.push_back(fmt::format("{}: {}", one.signature, one.gain));
    if (one.misses != 0) {
      misses.push_back(
          fmt::format("{}: {}, because a value that they read was another one", one.signature, one.misses));
    }
  }
  report.list("gains", "What a replay is", gains);
  report.list("misses", "Replays that were taken back", misses);
  report.list("parts", "Parts that stay eager", parts);
  report.list("compiled", "Compiled modules", compiled);
  report.list("numbers", "Numbers among the arguments", numbers);
  callable::add_calls(report, signatures, unfollowed, std::move(table), branches);
  return report;
}

}  // namespace pianola
