#include <pianola/training/full_iteration_info.hpp>

#include <pianola/callable/branch_table.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pianola {

Report FullIterationInfo::report() const {
  const auto count = [](auto value) { return static_cast<std::int64_t>(value); };
  Report report("Full iteration");
  report.fact("signatures", "signatures", count(signatures.size()))
      .fact("evictions", "evictions", count(evictions))
      .fact("pool_bytes", "pool", count(pool_bytes), "bytes")
      .fact("input_bytes", "static inputs", count(input_bytes), "bytes");
  ReportTable table("iterations", "Iterations by signature, the latest first",
                    {{"stage"}, {"signature"}, {"state"}, {"eager"}, {"replays"}, {"recaptures"}});
  callable::BranchTable branches("signature");
  for (const IterationInfo& one : signatures) {
    table.row({std::string(in_words(one.stage)), one.signature, std::string(to_string(one.state)),
               count(one.eager_calls), count(one.replays), count(one.recaptures)});
    if (one.branches) branches.row(one.signature, *one.branches);
  }
  report.list("compiled", "Compiled modules", compiled);
  callable::add_calls(report, signatures, unfollowed, std::move(table), branches);
  return report;
}

}  // namespace pianola
