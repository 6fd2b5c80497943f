#pragma once
#include <pianola/audit/observed_runs.hpp>
#include <pianola/audit/report.hpp>

#include <cstddef>
#include <optional>
#include <vector>

// Each looks at the runs of a step for the hazards of one kind. None changes anything, and none needs another one's
// findings: what is a consequence of another hazard is left out by what the runs show.

namespace pianola::auditing {

using Findings = std::vector<Finding>;

/// Values and shapes that the host reads: PG101 to PG107, PG111, PG112; in clipping, scaling, optimizers: PG1001 to PG1003.
[[nodiscard]] Findings check_host_reads(const ObservedRuns& runs);
/// Where the last run was cut into pieces that graphs can hold: what check_host_reads() tells of.
[[nodiscard]] std::vector<AuditCut> find_cuts(const ObservedRuns& runs);
/// Tensors of the CPU, copies from host memory, other devices: PG201 to PG205; PG706.
[[nodiscard]] Findings check_devices(const ObservedRuns& runs);
/// Numbers among the arguments: PG301; of an optimizer: PG1001. Tensors made from host values: PG303.
[[nodiscard]] Findings check_numbers(const ObservedRuns& runs);
/// Tensors from outside that were replaced: PG401, PG402, PG404, PG802, and gradients that were, PG403.
[[nodiscard]] Findings check_moved_memory(const ObservedRuns& runs);
/// Pinned memory that is written between runs while a copy of it may still be on its way: PG206.
[[nodiscard]] Findings check_pinned_buffers(const ObservedRuns& runs);
/// Gradients that were dropped between runs, or kept: PG403, PG903.
[[nodiscard]] Findings check_gradients(const ObservedRuns& runs);
/// The first operation or tensor that differs: PG501 to PG504.
[[nodiscard]] Findings check_control_flow(const ObservedRuns& runs);
/// Generators: PG601, PG602, PG605, PG606.
[[nodiscard]] Findings check_random(const ObservedRuns& runs);
/// Results that are kept or change, inputs that are written: PG505, PG901, PG902.
[[nodiscard]] Findings check_results(const ObservedRuns& runs);
/// Modes of PyTorch: PG906, PG1008.
[[nodiscard]] Findings check_modes(const ObservedRuns& runs);
/// Modes, tensors and calls that no graph can hold: PG1005, PG1106, PG1203.
[[nodiscard]] Findings check_plain(const ObservedRuns& runs);
/// Whether there is anything to capture: PG1201.
[[nodiscard]] Findings check_work(const ObservedRuns& runs);

/// Whether a graph of the last run finds room: PG908. Asks the device what it has left. @param free  Is taken for that.
[[nodiscard]] Findings check_memory(const ObservedRuns& runs, std::optional<std::size_t> free);

/// Whether the gradient of a leaf was dropped, or replaced, between two runs, one behind the other.
[[nodiscard]] bool gradient_was_dropped(const GradientNote& in_a, const GradientNote& in_b);
[[nodiscard]] bool gradients_were_dropped(const ObservedRuns& runs, const RunPair& pair);
/// Whether a gradient is there decides what accumulating into it takes: two runs may do the same up to there. That it was
/// dropped, or that the step used another parameter before, is a finding of its own.
[[nodiscard]] bool stops_at_accumulation(const ObservedRuns& runs, const RunPair& pair);

}  // namespace pianola::auditing
