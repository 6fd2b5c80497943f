#pragma once

namespace pianola::graph {

/// Whether a capture is open on this thread. One at a time: the current stream, the generators and the open recording
/// are per thread or shared; and memory must not go back to the device meanwhile.
inline bool& capture_is_open() {
  thread_local bool open = false;
  return open;
}

}  // namespace pianola::graph
