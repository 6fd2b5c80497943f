#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>
#include <vector>

namespace pianola::graph {

enum class CaptureStage : std::uint8_t { none, warm_up, recording };

/// What the open capture of this thread does. One at a time: the current stream, the generators and the open recording
/// are per thread or shared; and memory must not go back to the device meanwhile.
inline CaptureStage& capture_stage() {
  thread_local CaptureStage stage = CaptureStage::none;
  return stage;
}

inline bool capture_is_open() { return capture_stage() != CaptureStage::none; }

/// The generators that the capture which is open on this thread knows, its warm-up included; nullptr: none is open.
inline const std::vector<at::Generator>*& open_generators() {
  thread_local const std::vector<at::Generator>* generators = nullptr;
  return generators;
}

}  // namespace pianola::graph
