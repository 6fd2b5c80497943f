#pragma once
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

namespace pianola::graph {

// Note [Few streams]
// torch keeps what was freed by the stream that it was made for, cuBLAS's workspaces of tens of MiB above all: memory of a
// stream that is never used again is lost to the rest. So a thread has one stream for each purpose on each device, and
// leaves them, when it ends, to the threads that come after it: there are as many as threads that are at work at once.

/// What a thread of Pianola's caller needs a stream of its own for.
enum class StreamPurpose : std::uint8_t { capture, audit, numbers };

/// This thread's. Lives as long as the thread; the next thread may be given it then.
c10::cuda::CUDAStream thread_stream(StreamPurpose purpose, c10::DeviceIndex device);

}  // namespace pianola::graph
