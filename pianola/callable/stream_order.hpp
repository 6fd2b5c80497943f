#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>

namespace pianola::callable {

/// Orders replays of graphs that share memory: one that is made on another stream waits, on the device, for the work of
/// the stream before. Nothing on the CPU.
class StreamOrder {
 public:
  /// Before a replay on the current stream of `device`.
  void enter(c10::Device device);

 private:
  std::optional<c10::Stream> last_;
};

}  // namespace pianola::callable
