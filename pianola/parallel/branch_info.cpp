#include <pianola/parallel/branch_info.hpp>

namespace pianola {
namespace {

// A time that was measured, or nothing: 0 stands for "not timed".
ReportValue measured(double us) { return us > 0 ? ReportValue(us) : ReportValue(); }

ReportValue said(const std::string& text) { return text.empty() ? ReportValue() : ReportValue(text); }

void add_outcome(Report& report, const BranchInfo& info) {
  const bool timed = info.serial_us > 0 && info.rebuilt_us > 0;
  report.fact("rebuilt", "rebuilt", info.rebuilt)
      .fact("reason", "why not", said(info.reason))
      .fact("serial_us", "replay as captured", measured(info.serial_us), "us")
      .fact("rebuilt_us", "replay rebuilt", measured(info.rebuilt_us), "us")
      .fact("speed_up", "speed-up", timed ? ReportValue(info.serial_us / info.rebuilt_us) : ReportValue())
      .fact("floor_us", "longest path alone", measured(info.floor_us), "us")
      .fact("untimed", "not timed because", said(info.untimed));
}

void add_plan(Report& report, const BranchInfo& info) {
  report.fact("branches", "branches asked for", info.branches)
      .fact("lanes", "lanes used", info.lanes)
      .fact("nodes", "nodes", info.nodes)
      .fact("units", "units", info.units)
      .fact("critical_nodes", "nodes on the longest path", info.critical_nodes)
      .fact("edges_before", "edges as captured", info.edges_before)
      .fact("edges_after", "edges rebuilt", info.edges_after)
      .fact("proved_pairs", "pairs proved to be in order", info.proved_pairs)
      .fact("modelled_serial_us", "modelled as captured", info.modelled_serial_us, "us")
      .fact("modelled_rebuilt_us", "modelled rebuilt", info.modelled_rebuilt_us, "us")
      .fact("modelled_critical_us", "modelled longest path", info.modelled_critical_us, "us");
}

void add_costs(Report& report, const BranchInfo& info) {
  report.fact("workspace_bytes", "workspaces", info.workspace_bytes, "bytes")
      .fact("held_bytes", "kept from reuse", info.held_bytes, "bytes")
      .fact("plan_us", "planning and proof", info.plan_time.count(), "us")
      .fact("rebuild_us", "rebuilding", info.rebuild_time.count(), "us")
      .fact("trial_us", "timing both", info.trial_time.count(), "us");
}

ReportTable obstacle_table(const BranchInfo& info) {
  ReportTable table("obstacles", "What held it back: dependencies without a value",
                    {{"cause"}, {"op", "operator that waits"}, {"dependencies"}});
  for (const BranchObstacle& obstacle : info.obstacles) table.row({obstacle.cause, obstacle.op, obstacle.dependencies});
  return table;
}

ReportTable path_table(const BranchInfo& info) {
  ReportTable table("longest_path", "The longest path without them, modelled",
                    {{"without"}, {"us", "longest path", "us", 1}});
  table.row({"nothing left out", info.modelled_critical_us})
      .row({"reuse of memory", info.without_reuse_us})
      .row({"workspaces", info.without_workspaces_us})
      .row({"barriers", info.without_barriers_us});
  return table;
}

}  // namespace

Report BranchInfo::report() const {
  Report report("Branches");
  add_outcome(report, *this);
  add_plan(report, *this);
  add_costs(report, *this);
  report.list("warnings", "Warnings", warnings);
  report.table(obstacle_table(*this)).table(path_table(*this));
  return report;
}

}  // namespace pianola
