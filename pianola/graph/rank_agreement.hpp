#pragma once
#include <pianola/distributed/statement_recorder.hpp>
#include <pianola/trace/op_trace.hpp>

namespace pianola::graph {

/// Before a graph that communicates is replayed: that other ranks have captured what goes with it. See Note [Agreement of ranks]. Waits for
/// them a while. A store that cannot be reached is the process group's to tell.
/// @param communication  Of the recording.
/// @param trace          Of the same, for places of calls; nullptr: there is none.
/// @throws CaptureError  They have not.
void agree_with_other_ranks(const distributed::StatementRecorder& communication, const OpTrace* trace);

}  // namespace pianola::graph
