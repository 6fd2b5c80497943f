#pragma once
#include <pianola/torch_abi/cuda/draw_words.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace pianola::graph {

// Note [Random numbers at the speed of a bare launch]
// A captured random kernel reads seed and offset from two device tensors that belong to the generator's state, and adds
// its own place within the graph. torch fills both tensors before each replay: two more kernels and 10 us on the host.
// Here the graph itself adds, as its last node, what it drew to the offset tensor, so the device is right for the next
// replay. The host keeps a mirror of what the device holds, and fills the tensors only where that differs from where
// the generator stands: after seeding, eager draws. A fill by anyone else, such as torch's own graphs, is seen by the
// tensors' version counters.

// Note [Graphs that draw from one generator run one after the other]
// Two graphs that ran at once would read the same offset, and draw the same numbers. So those that draw from one generator
// run in the order of their launches, as graphs of a pool do (see pool_turn.hpp), whatever their pools, streams and threads.
// Which numbers a replay draws is settled on the host before its launch, with the generator's lock: an eager draw of another
// thread comes before them or behind them.

/// Keeps one graph's generators in step with its replays.
class GeneratorClock {
  struct Mirror;

 public:
  using State = torch_abi::GeneratorState;
  /// The state of a generator, and one that has it.
  using Drawable = std::vector<std::pair<State, at::Generator>>;
  GeneratorClock();
  GeneratorClock(GeneratorClock&&) noexcept;
  GeneratorClock& operator=(GeneratorClock&&) noexcept;
  ~GeneratorClock();

  /// As the last work of a capture, on its stream: appends the advance of each state that the capture drew from.
  /// @param drew  Whether it drew at all: a state may stand at the start because it was put back there.
  static GeneratorClock append_advance(const Drawable& states, torch_abi::CaptureId capture, bool drew);

  [[nodiscard]] bool idle() const noexcept { return hands_.empty(); }
  [[nodiscard]] bool draws_from(const State& state) const noexcept;

  /// A launch: nobody else launches what draws from the same generators while it lives.
  class Turn {
   public:
    /// Before the launch: moves the host on by what the graph draws, and makes the device hold where it stood, which it
    /// rarely does not.
    /// @throws UsageError  As StreamOrder::enter().
    Turn(const GeneratorClock& clock, const c10::Stream& stream);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    /// Without launched(), the host stands where it stood, unless somebody else has moved it on.
    ~Turn();

    void launched() noexcept;
    /// The device's numbers are moved without the host's: the next turn writes them anew.
    void forget() noexcept;
    /// As StreamOrder::leave().
    void leave();

   private:
    void take(const c10::Stream& stream);
    void end() noexcept;
    const GeneratorClock& clock_;
    std::size_t held_ = 0, taken_ = 0;  // of the clock's hands
  };

  /// While it lives, nobody uses the numbers on the device of these.
  class Hold {
   public:
    explicit Hold(const std::vector<State>& states);
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold();

   private:
    std::vector<std::shared_ptr<Mirror>> held_;
  };

 private:
  struct Hand {
    std::shared_ptr<Mirror> mirror;
    at::Generator generator;
    std::uint64_t increment;
  };
  static std::shared_ptr<Mirror> mirror_of(const State& state);
  std::vector<Hand> hands_;  // in the order of their mirrors, which is that of their locks
};

}  // namespace pianola::graph
