#pragma once
#include <ATen/core/Generator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pianola::graph {

// Note [Draws of other threads]
// Threads share the default generators. A capture that puts one back where it found it takes back what others drew
// meanwhile, and they draw the same numbers once more. A generator tells where it stands, not who moved it: so while a
// capture is open, every operation of other threads that may draw is counted, by a callback of all threads. A generator that
// stands elsewhere than the capture's own last draw left it, after a count, was moved by others. Draws that no callback
// sees, of replays, count themselves.

/// Says of this thread, and of autograd's threads that work for it, that they belong to one capture.
class CaptureThreads {
 public:
  CaptureThreads();
  /// What tells one capture's threads from another's; nullptr: no capture.
  [[nodiscard]] static const void* current() noexcept;

 private:
  std::shared_ptr<c10::DebugInfoBase> identity_;
  c10::DebugInfoGuard guard_;
};

/// Counts, while it lives, what may have moved some generators and belongs to another capture than this thread, or none.
class ForeignDraws {
 public:
  ForeignDraws();
  ForeignDraws(const ForeignDraws&) = delete;
  ForeignDraws& operator=(const ForeignDraws&) = delete;
  ~ForeignDraws();

  /// Watches one more. @return  Its number, from 0 on.
  std::size_t watch(const at::Generator& generator);

  struct Count {
    std::uint64_t begun = 0, ended = 0;
    /// Whether a draw ran at any time between an earlier count and this one.
    [[nodiscard]] bool is_after(const Count& earlier) const noexcept { return begun != earlier.ended; }
  };
  [[nodiscard]] Count count(std::size_t generator) const;

  /// While it lives, this thread may draw unseen from these: a replay does.
  class Unseen {
   public:
    /// @param generators  Must outlive it.
    explicit Unseen(const std::vector<at::Generator>& generators);
    Unseen(const Unseen&) = delete;
    Unseen& operator=(const Unseen&) = delete;
    ~Unseen();

   private:
    std::uint64_t draw_;
  };

 private:
  friend struct ForeignDrawsRegistry;
  struct Watched {
    at::Generator generator;
    Count count;
  };
  const void* own_;
  std::uint64_t number_;
  std::vector<Watched> watched_;
};

}  // namespace pianola::graph
