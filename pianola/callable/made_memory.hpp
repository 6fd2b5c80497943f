#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace pianola::callable {

// Note [Who holds a gradient]
// A gradient that a capture made may be held by a tensor of its own on the same memory: `p.grad.data`, `p.grad.detach()`. Its
// memory is counted: more references than when the capture was over are somebody's. But graphs that are captured later take
// references, too, as they work on the same gradients. So each capture counts what it has added to all that is known, for as
// long as its graph lives. Other references may go: a count that was seen to be lower is the one from then on.

/// Memory that a capture made, and whether anybody but captures holds it. Captures of other threads may count at any time.
class MadeMemory {
 public:
  /// That of these tensors, known to all captures from now on. Whoever holds it now may go on. Undefined ones have none.
  [[nodiscard]] static std::shared_ptr<MadeMemory> of(const std::vector<at::Tensor>& tensors);

  /// Whether somebody has begun to hold some of it. In one tight loop.
  [[nodiscard]] bool is_held();

  class Capture;
  /// The references of one graph to memory that was known before it. It goes after the graph.
  class References {
   public:
    References() = default;
    References(References&& other) noexcept : added_(std::exchange(other.added_, {})) {}
    References& operator=(References&& other) noexcept {
      std::swap(added_, other.added_);
      return *this;
    }
    ~References();

   private:
    friend class Capture;
    struct Added {
      std::weak_ptr<MadeMemory> memory;
      std::size_t index;
      std::size_t count;
    };
    std::vector<Added> added_;
  };

  /// Of a step: what it adds to memory that is known is no user's. Nor is what other threads take meanwhile: that is not seen.
  class Capture {
   public:
    Capture();
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    ~Capture() = default;
    /// It is over, and what its run held is gone.
    [[nodiscard]] References finish();

   private:
    std::vector<std::pair<std::shared_ptr<MadeMemory>, std::vector<std::size_t>>> before_;
  };

 private:
  struct One {
    explicit One(c10::Storage memory);
    [[nodiscard]] std::size_t count() const;

    c10::Storage storage;
    std::atomic<std::size_t> references;
  };
  [[nodiscard]] std::vector<std::size_t> counts() const;

  std::deque<One> all_;
};

}  // namespace pianola::callable
