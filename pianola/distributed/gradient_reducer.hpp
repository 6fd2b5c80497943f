#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace c10d {
class ProcessGroup;
}  // namespace c10d

namespace pianola::distributed {

/// How GradientReducer groups gradients. The defaults are those of Python's DistributedDataParallel.
struct GradientReducerOptions {
  /// Bytes of gradients that are reduced as one bucket. Larger ones are fewer calls, smaller ones begin earlier.
  std::size_t bucket_bytes = std::size_t{25} << 20U;
  /// The same of the bucket whose gradients are ready first.
  std::size_t first_bucket_bytes = std::size_t{1} << 20U;
  /// `.grad` becomes a view of its bucket: saves the memory of a second copy of all gradients, and copying them. Such gradients must
  /// not be detached in place, as zero_grad() of torch::optim's optimizers does: zero them in place instead.
  bool gradient_as_bucket_view = false;
  /// Tensors besides the parameters that all ranks have alike, as a module's running statistics: those of rank 0 are copied to all
  /// ranks at construction, and by each begin() after a backward pass that was reduced.
  std::vector<at::Tensor> buffers = {};
};

/// Data parallel training: while a backward pass runs, the gradients of all ranks are averaged, bucket by bucket.
///
///     auto group = pianola::distributed::process_group_from_environment(device.type());
///     pianola::distributed::GradientReducer reducer(model->parameters(), group, {.buffers = model->buffers()});
///     pianola::FullIteration iteration([&](const std::vector<c10::IValue>& microbatches) -> c10::IValue {
///       optimizer.zero_grad();
///       reducer.begin();                       // before the forward pass
///       at::Tensor loss = loss_of(model, microbatches.front());
///       loss.backward();                       // `.grad` is the average over the ranks when it returns
///       optimizer.step();
///       return loss.detach();
///     });
///
/// It runs c10d::Reducer, the engine of Python's DistributedDataParallel, in the same way: buckets, order and numbers are the same,
/// bit for bit. The first backward pass reduces one bucket; at its end the gradients are grouped anew in the order in which they
/// came, which rank 0 tells the others. So a graph wants one warm-up run before it is captured. Unlike DistributedDataParallel it
/// takes no times, and needs no 11 warm-up runs on a GPU.
///
/// All parameters get a gradient in each backward pass that is reduced: one that has none is an error of the next begin().
/// Gradients by torch::autograd::grad() are not seen, and not reduced. Sparse ones are not supported.
///
/// All ranks make the same calls in the same order. It keeps parameters, buffers and group alive, and ends before none of them.
///
/// Threads:  One call at a time. Its work in backward() is done on autograd's threads.
/// Streams:  The current one of the parameters' device. The constructor and the end of the first reduced backward pass wait for the
///           device; nothing else does.
class PIANOLA_API GradientReducer {
 public:
  /// Copies rank 0's parameters and buffers to all ranks. Blocks until they are here.
  ///
  /// @param parameters  Of a model, in an order that is the same on all ranks, on one device. Those that do not require grad are
  ///                    copied, and not reduced.
  /// @param group       Whose ranks train together, by a backend for that device; see process_group_from_environment().
  /// @throws UsageError  There is no group, or no parameter that requires grad; a tensor is undefined, no leaf, listed twice, or on
  ///                     another device than the first; a number of bytes is 0; or number, shapes, strides or dtypes are not the
  ///                     same on all ranks, which each of them then throws. Nothing was changed.
  GradientReducer(std::vector<at::Tensor> parameters, c10::intrusive_ptr<c10d::ProcessGroup> group,
                  GradientReducerOptions options = {});
  GradientReducer(GradientReducer&&) noexcept;
  GradientReducer& operator=(GradientReducer&&) noexcept;
  /// Outside of backward passes.
  ~GradientReducer();

  /// Before each forward pass whose backward pass follows. Copies the buffers of rank 0. Does nothing while grad mode is off.
  ///
  /// A backward pass without it throws UsageError, since its gradients would be those of this rank alone: they are added to `.grad`
  /// by then.
  ///
  /// @throws UsageError  Parameters got no gradient in the backward pass before.
  void begin();

 private:
  friend class NoSync;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// While it lives, backward passes add to `.grad` and reduce nothing, as for all microbatches but the last:
///
///     for (std::size_t i = 0; i < microbatches.size(); ++i) {
///       std::optional<pianola::distributed::NoSync> no_sync;
///       if (i + 1 < microbatches.size()) no_sync.emplace(reducer);
///       reducer.begin();
///       loss_of(model, microbatches[i]).backward();  // the last one reduces the sum
///     }
class PIANOLA_API NoSync {
 public:
  /// @param reducer  Ends after it; may be moved meanwhile.
  /// @throws UsageError  begin() has been called already for the next backward pass.
  explicit NoSync(GradientReducer& reducer);
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  ~NoSync();

 private:
  GradientReducer::Impl* reducer_;
};

}  // namespace pianola::distributed
