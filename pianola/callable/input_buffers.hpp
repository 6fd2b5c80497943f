#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

namespace pianola::callable {

// Note [Static inputs that graphs share]
// A replay copies the call's inputs into the graph's own tensors first, and reads them until it is over. The graphs of one cache run
// one after the other, so that the inputs of all its signatures may lie in the same bytes: each begins where the buffer begins, which
// is as large as the largest. What makes that right:
//
//   who reads later    nobody may. A backward pass that is still to come reads inputs that it has saved: calls with such a pass have
//                      inputs of their own. Where other code runs in the middle of a replay (parts that stay eager, reads that are
//                      checked, optimizers that read values), it may call the function with other inputs: so have these.
//   who holds them     results that are inputs, or views of them, are the caller's tensors (Note [Results that share memory]). A step
//                      or function that leaves a gradient in the memory of an input is captured again, with inputs of its own (HeldInput).
//                      One that keeps an input stays eager (Note [Inputs that a function keeps]).
//   who writes them    the step does not: it is refused. The capture does, behind the last replay (graph::StreamOrder), as any replay.
//   who asks           forward-mode derivatives (torch.func.jvp) compare the sizes of whole storages, and take another path where one is
//                      larger than its tensor: calls that ask have inputs of their own.
//   growing            addresses are baked in. A signature that needs more makes a larger buffer; graphs that are there keep theirs, and
//                      the old one goes with the last of them. So the first capture makes room for all signatures whose next call would
//                      be captured, too: where calls warm up in turn, one buffer serves all.

/// What a static input takes of a buffer.
struct InputSize {
  c10::Device device = c10::Device(c10::kCPU);
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::uint64_t bytes = 0;  ///< 0: it is none that can lie there.
};
[[nodiscard]] std::vector<InputSize> sizes_of_inputs(std::span<const at::Tensor> inputs);

/// The memory of static inputs that the graphs of one cache share. Keeps none alive: graphs do. One caller at a time.
class InputBuffers {
 public:
  /// While it lives, new buffers are as large as the largest of what is expected.
  class Expectation {
   public:
    explicit Expectation(InputBuffers& buffers) : buffers_(buffers) {}
    Expectation(const Expectation&) = delete;
    Expectation& operator=(const Expectation&) = delete;
    ~Expectation() { buffers_.expected_.clear(); }
    /// The inputs of one call more.
    void add(std::span<const InputSize> inputs);

   private:
    InputBuffers& buffers_;
  };

  /// A static input as graph::static_copy_of() makes it, at the beginning of the buffer of its device, dtype and position; in
  /// memory of its own where it has gaps, repeats elements, is empty, or its bytes are not its values. No view of anything: who
  /// writes to other tensors of the buffer is not counted as a writer of this one.
  /// @param position  Among the inputs of its call: no two of a call share a buffer.
  [[nodiscard]] at::Tensor static_copy_of(std::size_t position, const at::Tensor& sample);

 private:
  using Key = std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType, std::size_t>;
  static Key key_of(std::size_t position, const InputSize& size) {
    return {size.device.type(), size.device.index(), size.dtype, position};
  }
  c10::Storage buffer_for(const Key& key, const InputSize& size);

  std::map<Key, c10::weak_intrusive_ptr<c10::StorageImpl>> buffers_;
  std::map<Key, std::uint64_t> expected_;
};

/// Whether the memory of one of the inputs is that of a gradient of one of the leaves.
[[nodiscard]] bool hold_gradients(std::span<const at::Tensor> inputs, std::span<const at::Tensor> leaves);

/// Bytes of the memory of all these tensors; what several lie in counts once.
[[nodiscard]] std::size_t bytes_of_memory(std::span<const at::Tensor> tensors);

}  // namespace pianola::callable
