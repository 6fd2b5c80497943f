#pragma once

#include <cstdint>

namespace pianola::graph {

enum class CaptureStage : std::uint8_t { none, warm_up, recording };

/// What the open capture of this thread does. One at a time: the current stream, the generators and the open recording
/// are per thread or shared; and memory must not go back to the device meanwhile.
inline CaptureStage& capture_stage() {
  thread_local CaptureStage stage = CaptureStage::none;
  return stage;
}

inline bool capture_is_open() { return capture_stage() != CaptureStage::none; }

}  // namespace pianola::graph
