#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/memory/step_run.hpp>
#include <pianola/parallel/plan.hpp>
#include <pianola/trace/op_trace.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace pianola::graph {

// Note [Recorded ahead]
// Where a step's memory is planned, lanes cannot be looked for in the recording itself: bytes that blocks share there order what is
// independent. So the step is recorded twice. First each of its blocks has bytes of its own, of addresses behind which there is next to
// no memory (AliasedMemory), since nothing of that recording ever runs. Its true dependencies give the lanes, and these say which blocks may
// be in use at once. Then the step is recorded as ever, by a plan that keeps such blocks apart. That the lanes are right is proved of that
// recording, as without a plan. A step that may do otherwise when it is captured (CaptureOptions::accept_capture_path) is recorded ahead, too:
// the eager runs have not shown the blocks that its recording asks for.

/// The run that a plan is made of, with what lanes keep apart.
///
/// Blocks of lanes are kept apart as far as dependencies do not order who uses them, if that takes no more than a little above what the step
/// has in use at a time: a twentieth, and `most_more` at most. Where it would, units that the lanes' times have far apart count as ordered,
/// then those that are less so, then those for which a lane waits a little, until the plan fits: in the end the blocks lie as on one lane.
///
/// @param run     Of one stream.
/// @param plan    Of the recording of that run.
/// @param places  Where each block lay there. Blocks that had the same bytes one after the other are taken for one.
/// @return  nullopt: there are too many blocks.
[[nodiscard]] std::optional<memory::StepRun> run_on_lanes(memory::StepRun run, const parallel::Plan& plan,
                                                          std::span<const ByteSpan> places, std::size_t most_more);

/// That the step, when it was recorded for the second time, used nothing that the first recording had made: there was nothing in it.
/// @param first  Where the blocks of the first one lay, less what the second one was handed out there since; empty: there was none.
/// @throws CaptureError  It did.
void check_nothing_carried(const OpTrace& trace, std::span<const ByteSpan> first);

}  // namespace pianola::graph
