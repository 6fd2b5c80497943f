#pragma once
#include <pianola/graph/options.hpp>
#include <pianola/trace/odd_work.hpp>
#include <pianola/trace/op_stream.hpp>

#include <optional>

namespace pianola::graph {

/// Before anything runs.
/// @throws UsageError    The options are out of range or do not go together, or this thread captures or allocates for a pool already.
/// @throws CaptureError  This thread, or an input, is not plain. See Note [What is plain].
/// @throws OutOfMemoryError  The static inputs take more than CaptureOptions::memory_limit.
void check_capture(const CaptureOptions& options);

/// The first thing in a step that its graph cannot hold; nothing while there is none.
/// @param may_communicate  CaptureOptions::communication.
[[nodiscard]] std::optional<trace::OddWork> odd_work_of(const trace::OpStream& step, bool may_communicate);
/// After a run. @throws CaptureError  There is such a thing.
void check_plain(const trace::OpStream& step, bool may_communicate);

}  // namespace pianola::graph
