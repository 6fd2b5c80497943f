#pragma once
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

namespace pianola::graph {

// Note [Few streams]
// torch keeps what was freed by the stream that it was made for, cuBLAS's workspaces of tens of MiB above all: memory of a
// stream that is never used again is lost to the rest. So a thread has one stream for each purpose on each device, and
// leaves them, when it ends, to the threads that come after it: there are as many as threads that are at work at once.
//
// They are none of torch's pool. That has 32, which it hands out in turn: what another thread does on one of them while it is being
// captured would become part of the graph, or break it.

/// What a thread of Pianola's caller needs a stream of its own for.
enum class StreamPurpose : std::uint8_t { capture, audit, numbers, sleep, after_replays };

/// This thread's. Lives as long as the thread; the next thread may be given it then.
c10::cuda::CUDAStream thread_stream(StreamPurpose purpose, c10::DeviceIndex device);

/// Before a graph or a pool is made on this thread: makes the thread-locals that its end needs, torch's current streams and these. A
/// thread-local one ends before them then; one that is older still, behind the thread. See end_made_with().
void prepare_to_end_on_this_thread(c10::DeviceIndex device);

}  // namespace pianola::graph
