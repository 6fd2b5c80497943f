#pragma once
#include <pianola/core/export.hpp>

namespace pianola {

/// Makes the tape torch's graph for the CPU, so that code which is written for the graphs of any device
/// (`at::create_graph_impl(device_type)`, torch 2.12 and newer) runs on a machine without one:
///
///     pianola::register_tape();
///     auto graph = at::create_graph_impl(at::kCPU);
///     graph->capture_begin();
///     y = x * 2;
///     graph->capture_end();
///     graph->replay();
///
/// Its methods throw as CaptureScope and Graph do. There is no warm-up, `keep_graph` and the capture's mode mean nothing,
/// and debug_dump() writes what Graph::dump_dot() does, before or after enable_debug_mode(). torch.accelerator.Graph of
/// Python asks for an accelerator and refuses the CPU by itself.
///
/// Calling it again does nothing. Any thread may call.
/// @throws UnsupportedError  This torch has no such graphs.
/// @throws UsageError        The CPU has graphs of somebody else's.
PIANOLA_API void register_tape();

}  // namespace pianola
