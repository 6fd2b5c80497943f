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
  py::class_<ParallelOptions>(module, "ParallelOptions",
                              "How the option `branches` goes about its work. The defaults suit most steps.")
      .def(py::init(&make_parallel_options), py::kw_only(), py::arg("workspaces") = defaults.workspaces,
           py::arg("reuse_delay") = defaults.reuse_delay, py::arg("split_kernels") = defaults.split_kernels,
           py::arg("memory_limit") = defaults.memory_limit, py::arg("self_check") = defaults.self_check,
           py::arg("warmed_up") = defaults.warmed_up)
      .def_readonly("workspaces", &ParallelOptions::workspaces,
                    "cuBLAS workspaces that matrix products take in turn, so that they need not wait for each other's. "
                    "0: as many as branches. 1: one for all, as torch has it.")
      .def_readonly("reuse_delay", &ParallelOptions::reuse_delay,
                    "For so many operations, and four times as many once the step has run backward, memory that the "
                    "step frees is not used again: reuse orders what is independent. 0: torch's own reuse.")
      .def_readonly("split_kernels", &ParallelOptions::split_kernels,
                    "Split every operation of several kernels, not only those that work on lists of tensors.")
      .def_readonly("memory_limit", &ParallelOptions::memory_limit,
                    "Most bytes that workspaces and delayed reuse may take together.")
      .def_readonly("self_check", &ParallelOptions::self_check,
                    "Time both graphs at the end of the capture, and keep the one as captured unless the rebuilt one "
                    "is at least 2 % faster.")
      .def_readonly(
          "warmed_up", &ParallelOptions::warmed_up,
          "The step has run before, on what its inputs hold now: a capture without warm-up may be tried, too.")
      .def("__repr__", &to_text);
}

void bind_obstacle(py::module_& module) {
  py::class_<BranchObstacle>(module, "BranchObstacle",
                             "One reason why work could not run at once, summed over one operator.")
      .def_readonly("cause", &BranchObstacle::cause, "\"reuse of memory\", \"workspace\" or \"barrier\".")
      .def_readonly("op", &BranchObstacle::op, "The operator that had to wait: \"aten::mm\".")
      .def_readonly("dependencies", &BranchObstacle::dependencies, "How many dependencies of that cause it has.");
}

void bind_branch_info(py::module_& module) {
  py::class_<BranchInfo>(module, "BranchInfo",
                         "What the option `branches` came to. Times that are called modelled come from a model of the "
                         "device, not from a clock.")
      .def_readonly("branches", &BranchInfo::branches, "Lanes that were asked for, at most 8.")
      .def_readonly("automatic", &BranchInfo::automatic, "Asked for by branches=\"auto\".")
      .def_readonly("rebuilt", &BranchInfo::rebuilt, "Replays run the rebuilt graph.")
      .def_readonly("reason", &BranchInfo::reason, "Why replays run the graph as captured; empty where they do not.")
      .def_readonly("nodes", &BranchInfo::nodes, "Nodes of the graph; on the tape, operations.")
      .def_readonly("units", &BranchInfo::units,
                    "Pieces that are ordered as a whole: operations, or kernels of split ones.")
      .def_readonly("edges_before", &BranchInfo::edges_before, "Of the graph as captured.")
      .def_readonly("edges_after", &BranchInfo::edges_after, "Of the rebuilt graph, lanes included.")
      .def_readonly("lanes", &BranchInfo::lanes, "That the schedule uses, with one for collectives.")
      .def_readonly("proved_pairs", &BranchInfo::proved_pairs,
                    "Pairs of units that touch the same bytes, one of them writing: all are ordered.")
      .def_readonly("critical_nodes", &BranchInfo::critical_nodes, "Nodes on the longest path.")
      .def_readonly("modelled_serial_us", &BranchInfo::modelled_serial_us,
                    "All nodes one after the other, collectives beside them.")
      .def_readonly("modelled_rebuilt_us", &BranchInfo::modelled_rebuilt_us, "On the lanes.")
      .def_readonly("modelled_critical_us", &BranchInfo::modelled_critical_us, "The longest path.")
      .def_readonly("without_reuse_us", &BranchInfo::without_reuse_us,
                    "The longest path, modelled, if no memory was used again.")
      .def_readonly("without_workspaces_us", &BranchInfo::without_workspaces_us,
                    "The longest path, modelled, if no workspace was shared.")
      .def_readonly("without_barriers_us", &BranchInfo::without_barriers_us,
                    "The longest path, modelled, without barriers.")
      .def_readonly("untimed", &BranchInfo::untimed,
                    "Why a rebuilt graph was taken without timing it; empty for others.")
      .def_readonly("serial_us", &BranchInfo::serial_us,
                    "A replay of the graph as captured, on the device; 0: not timed.")
      .def_readonly("rebuilt_us", &BranchInfo::rebuilt_us, "A replay of the rebuilt graph; 0: not timed.")
      .def_readonly("floor_us", &BranchInfo::floor_us,
                    "The longest path alone: its modelled share of serial_us; 0: not timed.")
      .def_readonly("workspace_bytes", &BranchInfo::workspace_bytes, "Of the pool's workspaces for branches.")
      .def_readonly("held_bytes", &BranchInfo::held_bytes,
                    "Most bytes that were kept from reuse at any time of the capture.")
      .def_property_readonly(
          "plan_us", [](const BranchInfo& self) { return self.plan_time.count(); },
          "Host time of planning and proof, in microseconds.")
      .def_property_readonly(
          "rebuild_us", [](const BranchInfo& self) { return self.rebuild_time.count(); },
          "Host time of making the rebuilt graph, in microseconds.")
      .def_property_readonly(
          "trial_us", [](const BranchInfo& self) { return self.trial_time.count(); },
          "Host time of timing both graphs, in microseconds.")
      .def_readonly("obstacles", &BranchInfo::obstacles, "What held it back, the most frequent first.")
      .def_readonly("warnings", &BranchInfo::warnings, "What is sound but may surprise, one sentence each.")
      .def("report", &BranchInfo::report, "All of it.")
      .def("__str__", [](const BranchInfo& self) { return self.report().to_text(); });
}

}  // namespace

void bind_branches(py::module_& module) {
  bind_parallel_options(module);
  bind_obstacle(module);
  bind_branch_info(module);
}

}  // namespace pianola::python
