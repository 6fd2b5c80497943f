#pragma once
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace pianola::graph {

/// The whole of the question that may_end() asks.
[[nodiscard]] bool is_named_by_its_handle(const c10::Stream& stream);

/// Whether it is a stream that torch has not made: whoever did may destroy it. Torch names such a stream by its handle, which is the address
/// of something and so never odd: torch's own, whose numbers are odd, cost a comparison.
[[nodiscard]] inline bool may_end(const c10::Stream& stream) {
  return (stream.id() & 1) == 0 && stream.id() != 0 && is_named_by_its_handle(stream);
}

/// Orders replays of graphs that share memory: one that is made on another stream waits, on the device, for the work of
/// the stream before. All on one device; nothing on the CPU. One caller at a time.
class StreamOrder {
 public:
  /// Before a replay on the current stream of `device`.
  /// @throws UsageError  The stream before is being captured now, so that nothing can wait for it.
  void enter(c10::Device device);
  /// The same on a stream that the caller knows.
  void enter(const c10::Stream& now);
  /// After the work that was entered: what follows on its stream is not waited for, and the stream may be captured or end.
  void leave();
  /// The same where the stream may end, else nothing.
  void leave_if_it_may_end() {
    if (last_ && !left_ && may_end(*last_)) leave();
  }
  /// After leave(): what follows on that stream, which may be any, waits for the work, too.
  void block(const c10::Stream& stream) const { reached_->block(stream); }
  /// Where the work that was entered has failed: a stream that may end is left, and not asked any more.
  void abandon() noexcept;

 private:
  std::optional<c10::Stream> last_;
  std::optional<c10::Event> reached_;  // made where it is needed first
  bool left_ = false;                  // reached_ stands behind the work of last_
};

/// Enters an order for work that may throw. Where it goes before done(), the work has failed: StreamOrder::abandon().
class EnteredStream {
 public:
  /// @throws UsageError  As StreamOrder::enter().
  EnteredStream(StreamOrder& order, const c10::Stream& now) : order_(order) { order_.enter(now); }
  EnteredStream(const EnteredStream&) = delete;
  EnteredStream& operator=(const EnteredStream&) = delete;
  ~EnteredStream() {
    if (!is_done_) order_.abandon();
  }
  void done() noexcept { is_done_ = true; }

 private:
  StreamOrder& order_;
  bool is_done_ = false;
};

/// One for each device: graphs of two share no memory, and wait for none of each other. One caller at a time.
class StreamOrders {
 public:
  /// StreamOrder::enter() of this one's.
  /// @param device  Of tensors: with its index.
  void enter(c10::Device device);
  /// StreamOrder::leave_if_it_may_end() of each.
  void leave_if_they_may_end();

 private:
  std::vector<StreamOrder> of_devices_;  // by index
};

}  // namespace pianola::graph
