#pragma once
#include <pianola/core/export.hpp>
#include <pianola/graph/options.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {

/// Named streams of random numbers beside the device's default one, for dropout that differs between the ranks of a
/// tensor-parallel group.
///
///     pianola::RngTracker random(device);
///     random.add("model-parallel", seed + rank);
///     {
///       const auto fork = random.fork("model-parallel");
///       x = at::dropout(x, 0.1, true);  // draws from that stream
///     }
///
/// A captured step may contain forks: replays draw from the named stream and advance it, as eager runs do. Pass the streams
/// to the capture: CaptureOptions::generators, FullIterationOptions::generators.
///
/// Threads:  One call at a time; a fork changes what every thread draws from the device's default generator.
class PIANOLA_API RngTracker {
 public:
  /// While it lives, the device's default generator draws from the stream. Forks end in the opposite order.
  class PIANOLA_API Fork {
   public:
    Fork(Fork&& other) noexcept;
    Fork(const Fork&) = delete;
    Fork& operator=(const Fork&) = delete;
    ~Fork();

   private:
    friend class RngTracker;
    Fork(RngTracker& tracker, std::size_t stream);

    RngTracker* tracker_;  // nullptr: moved from
    std::size_t stream_;
    at::Generator outer_;  // on CUDA: names the state that the default generator had
  };

  /// Where all streams and the device's default generator stood at one moment.
  class Place {
   private:
    friend class RngTracker;
    explicit Place(const RngTracker& tracker) : tracker_(&tracker) {}

    const RngTracker* tracker_;
    std::vector<at::Tensor> states_;  // of the streams, then of what the default generator drew from
    std::vector<bool> forked_;
    at::Generator drawn_from_;   // on CUDA: names the state that the default generator had
    std::uint64_t capture_ = 0;  // on CUDA: in which it was taken; 0: in none
  };

  /// While it lives, streams and default generator draw on from a place. Then they are where they were before.
  class PIANOLA_API Rewind {
   public:
    Rewind(Rewind&& other) noexcept;
    Rewind(const Rewind&) = delete;
    Rewind& operator=(const Rewind&) = delete;
    ~Rewind();

   private:
    friend class RngTracker;
    Rewind(RngTracker& tracker, const Place& place);

    RngTracker* tracker_;  // nullptr: moved from
    Place before_;
    at::Generator drawn_from_;     // on CUDA: what the place draws from
    at::Tensor drawn_from_state_;  // where that stood
  };

  /// @throws DeviceError  There is no such device. @throws UnsupportedError  It is neither CUDA nor CPU.
  explicit RngTracker(c10::Device device);
  RngTracker(const RngTracker&) = delete;
  RngTracker& operator=(const RngTracker&) = delete;
  ~RngTracker() = default;

  /// A new stream. @throws UsageError  The name is taken, or another stream has this seed and would draw the same numbers.
  void add(std::string name, std::uint64_t seed);
  [[nodiscard]] std::vector<std::string> names() const;

  /// @throws UsageError    There is no such stream, or it is forked already.
  /// @throws CaptureError  A capture is open on this thread and does not know the stream.
  [[nodiscard]] Fork fork(std::string_view name);
  /// How many forks are open in this process, of whatever tracker.
  [[nodiscard]] static int forks_open() noexcept;

  /// To draw the same numbers once more, where activations are computed a second time in the backward pass: take the
  /// place in front of the forward pass of that part, and rewind() around the second one. Both may be captured.
  /// @throws CaptureError  (both) A capture is open on this thread and does not know a stream.
  [[nodiscard]] Place place() const;
  /// @throws UsageError    The place is of another tracker.
  /// @throws CaptureError  On CUDA, it was not taken in the capture that is open, or in one that has ended: where replays
  ///                       stand then is not known.
  [[nodiscard]] Rewind rewind(const Place& place);

  /// Of all streams, for captures. Made by add(), so add all streams first.
  [[nodiscard]] std::vector<at::Generator> generators() const;

  /// Where each stream stands: uint8 tensors on the CPU, as torch's Generator::get_state() gives them.
  /// @throws UsageError  (this and the next two) A stream is forked, and stands elsewhere.
  [[nodiscard]] std::vector<NamedTensor> state() const;
  /// The same as a map from names to tensors, for a checkpoint.
  [[nodiscard]] c10::IValue state_dict() const;
  /// Streams that are not there yet are made; graphs that know one go on with the loaded state.
  /// @throws UsageError  No such map, a stream of this tracker is missing in it, or a state of another kind of device;
  ///                     nothing was changed.
  void load_state_dict(const c10::IValue& state);

 private:
  struct Stream {
    std::string name;
    std::uint64_t seed = 0;
    at::Generator generator;
    bool forked = false;
  };
  void refuse_while_forked(const char* call) const;
  void refuse_unknown(const Stream& stream, const char* what) const;
  [[nodiscard]] Place here() const;
  void go_to(const Place& place);
  [[nodiscard]] std::size_t index_of(std::string_view name) const;  // size() where there is none

  c10::Device device_;
  std::vector<Stream> streams_;
};

}  // namespace pianola
