#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace at {
struct CUDAGeneratorState;
}

namespace pianola::graph {

// Note [Random numbers at the speed of a bare launch]
// A captured random kernel reads seed and offset from two device tensors that belong to the generator's state, and adds
// its own place within the graph. torch fills both tensors before each replay: two more kernels and 10 us on the host.
// Here the graph itself adds, as its last node, what it drew to the offset tensor, so the device is right for the next
// replay. The host keeps a mirror of what the device holds, and fills the tensors only where that differs from where
// the generator stands: after seeding, eager draws, another capture. A fill by anyone else is seen by the tensors'
// version counters.

/// Keeps one graph's generators in step with its replays.
class GeneratorClock {
 public:
  using State = c10::intrusive_ptr<at::CUDAGeneratorState>;
  GeneratorClock();
  GeneratorClock(GeneratorClock&&) noexcept;
  GeneratorClock& operator=(GeneratorClock&&) noexcept;
  ~GeneratorClock();

  /// As the last work of a capture, on its stream: appends the advance of each state that the capture drew from.
  /// @param drew  Whether it drew at all: a state may stand at the start because it was put back there.
  static GeneratorClock append_advance(const std::vector<State>& states, bool drew);

  [[nodiscard]] bool idle() const noexcept { return hands_.empty(); }
  [[nodiscard]] bool draws_from(const State& state) const noexcept;
  /// Before the launch, on its stream: makes the device hold what the host says. Rarely has anything to do.
  void set() const;
  /// The device's numbers were moved without the host's: the next set() writes them anew.
  void forget() const noexcept;
  /// After the launch: moves the host on by what the graph draws.
  void advance() const noexcept;

 private:
  struct Mirror;
  struct Hand {
    std::shared_ptr<Mirror> mirror;
    std::uint64_t increment;
  };
  static std::shared_ptr<Mirror> mirror_of(const State& state);
  std::vector<Hand> hands_;
};

}  // namespace pianola::graph
