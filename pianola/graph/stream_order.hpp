#pragma once
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

namespace pianola::graph {

/// Orders replays of graphs that share memory: one that is made on another stream waits, on the device, for the work of
/// the stream before. Nothing on the CPU. One caller at a time.
class StreamOrder {
 public:
  /// Before a replay on the current stream of `device`.
  /// @throws UsageError  The stream before is being captured now, so that nothing can wait for it.
  void enter(c10::Device device);
  /// The same on a stream that the caller knows.
  void enter(const c10::Stream& now);
  /// After the work that was entered: what follows on its stream is not waited for, and the stream may be captured or end.
  void leave();

 private:
  std::optional<c10::Stream> last_;
  std::optional<c10::Event> reached_;  // made where it is needed first
  bool left_ = false;                  // reached_ stands behind the work of last_
};

}  // namespace pianola::graph
