#include <bindings/bindings.hpp>

#include <pianola/parallel/branch_info.hpp>
#include <pianola/parallel/options.hpp>

#include <cstddef>
#include <string>

namespace pianola::python {
namespace {

ParallelOptions make_parallel_options(int workspaces, int reuse_delay, bool split_kernels, std::size_t memory_limit,
                                      bool self_check, bool warmed_up) {
  return {.workspaces = workspaces,
          .reuse_delay = reuse_delay,
          .split_kernels = split_kernels,
          .memory_limit = memory_limit,
          .self_check = self_check,
          .warmed_up = warmed_up};
}

std::string to_text(const ParallelOptions& options) {
  const auto word = [](bool yes) { return std::string(yes ? "True" : "False"); };
  return "pianola.ParallelOptions(workspaces=" + std::to_string(options.workspaces) +
         ", reuse_delay=" + std::to_string(options.reuse_delay) + ", split_kernels=" + word(options.split_kernels) +
         ", memory_limit=" + std::to_string(options.memory_limit) + ", self_check=" + word(options.self_check) +
         ", warmed_up=" + word(options.warmed_up) + ")";
}

void bind_parallel_options(py::module_& module) {
  const ParallelOptions defaults;
  py::class_<ParallelOptions>(module, "ParallelOptions", "How the option `branches` goes about its work.")
      .def(py::init(&make_parallel_options), py::kw_only(), py::arg("workspaces") = defaults.workspaces,
           py::arg("reuse_delay") = defaults.reuse_delay, py::arg("split_kernels") = defaults.split_kernels,
           py::arg("memory_limit") = defaults.memory_limit, py::arg("self_check") = defaults.self_check,
           py::arg("warmed_up") = defaults.warmed_up)
      .def_readonly("workspaces", &ParallelOptions::workspaces)
      .def_readonly("reuse_delay", &ParallelOptions::reuse_delay)
      .def_readonly("split_kernels", &ParallelOptions::split_kernels)
      .def_readonly("memory_limit", &ParallelOptions::memory_limit)
      .def_readonly("self_check", &ParallelOptions::self_check)
      .def_readonly("warmed_up", &ParallelOptions::warmed_up)
      .def("__repr__", &to_text);
}

void bind_obstacle(py::module_& module) {
  py::class_<BranchObstacle>(module, "BranchObstacle", "One reason why work could not run at once.")
      .def_readonly("cause", &BranchObstacle::cause)
      .def_readonly("op", &BranchObstacle::op)
      .def_readonly("dependencies", &BranchObstacle::dependencies);
}

void bind_branch_info(py::module_& module) {
  py::class_<BranchInfo>(module, "BranchInfo", "What the option `branches` came to.")
      .def_readonly("branches", &BranchInfo::branches)
      .def_readonly("rebuilt", &BranchInfo::rebuilt)
      .def_readonly("reason", &BranchInfo::reason)
      .def_readonly("nodes", &BranchInfo::nodes)
      .def_readonly("units", &BranchInfo::units)
      .def_readonly("edges_before", &BranchInfo::edges_before)
      .def_readonly("edges_after", &BranchInfo::edges_after)
      .def_readonly("lanes", &BranchInfo::lanes)
      .def_readonly("proved_pairs", &BranchInfo::proved_pairs)
      .def_readonly("critical_nodes", &BranchInfo::critical_nodes)
      .def_readonly("modelled_serial_us", &BranchInfo::modelled_serial_us)
      .def_readonly("modelled_rebuilt_us", &BranchInfo::modelled_rebuilt_us)
      .def_readonly("modelled_critical_us", &BranchInfo::modelled_critical_us)
      .def_readonly("without_reuse_us", &BranchInfo::without_reuse_us)
      .def_readonly("without_workspaces_us", &BranchInfo::without_workspaces_us)
      .def_readonly("without_barriers_us", &BranchInfo::without_barriers_us)
      .def_readonly("untimed", &BranchInfo::untimed)
      .def_readonly("serial_us", &BranchInfo::serial_us)
      .def_readonly("rebuilt_us", &BranchInfo::rebuilt_us)
      .def_readonly("floor_us", &BranchInfo::floor_us)
      .def_readonly("workspace_bytes", &BranchInfo::workspace_bytes)
      .def_readonly("held_bytes", &BranchInfo::held_bytes)
      .def_property_readonly("plan_us", [](const BranchInfo& self) { return self.plan_time.count(); })
      .def_property_readonly("rebuild_us", [](const BranchInfo& self) { return self.rebuild_time.count(); })
      .def_property_readonly("trial_us", [](const BranchInfo& self) { return self.trial_time.count(); })
      .def_readonly("obstacles", &BranchInfo::obstacles)
      .def_readonly("warnings", &BranchInfo::warnings)
      .def("report", &BranchInfo::report)
      .def("__str__", [](const BranchInfo& self) { return self.report().to_text(); });
}

}  // namespace

void bind_branches(py::module_& module) {
  bind_parallel_options(module);
  bind_obstacle(module);
  bind_branch_info(module);
}

}  // namespace pianola::python
