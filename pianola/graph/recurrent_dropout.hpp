#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

namespace pianola::graph {

// Note [Recurrent dropout of cuDNN]
// cuDNN draws the dropout between the layers of a recurrent network from a state of its own, in memory that torch keeps one
// of per device (aten/src/ATen/native/cudnn/RNN.cpp, get_dropout_state). Where the default generator was seeded or set,
// torch makes that state anew at the next eager call, in other memory, from a number that it draws and reads on the host.
// A graph can do neither: it would go on drawing from the old state. The generator has a flag for "was seeded since", and
// to ask it is to clear it: whoever asks and does not make the state anew sets it again.
// A recording in which the state begins anew is refused, since each of its replays would begin it again. What torch keeps of that
// recording is memory that goes with it, which nothing has filled; and the flag is cleared. So the flag is set: the next eager call, or the
// next recording, makes a state of its own.

/// The states of recurrent dropout that a run draws from, and whether eager calls would still draw from them.
class RecurrentDropout final : public trace::OpObserver {
 public:
  void on_op_begin(const trace::OpSpan& op) override;

  /// The run is a recording, which begins now.
  void begin_recording(c10::Device device);
  /// Why no graph of the recording could be right; nothing where one could.
  [[nodiscard]] std::optional<Diagnosis> offence_of_recording() const;
  /// The recording is dropped: eager calls begin the state anew where they would have without it, or where it has begun one.
  void forget_recording();

  /// Whether the run itself began with a new state, which a graph cannot.
  [[nodiscard]] bool began_anew() const noexcept { return began_anew_; }
  /// Threads: any. Takes no lock while all is intact.
  [[nodiscard]] bool intact() const noexcept;
  /// Why a replay is refused. Only where not intact().
  [[nodiscard]] Diagnosis offence() const;
  /// The same in short, for who captures again.
  [[nodiscard]] static std::string difference() {
    return "a generator was seeded or set, and cuDNN's recurrent dropout begins anew";
  }

 private:
  struct State {
    trace::WeakTensor tensor;
    c10::Device device;
  };
  std::vector<State> states_;  // keeps none alive
  bool began_anew_ = false;
  std::optional<c10::Device> recorded_on_;  // CUDA alone has such states
  bool began_seeded_ = false;               // the recording
};

}  // namespace pianola::graph
