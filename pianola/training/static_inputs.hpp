#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/training/buckets.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola {

/// How StaticInputs moves batches. Every field has a safe default.
struct StaticInputsOptions {
  /// Copy tensors of ordinary host memory into pinned buffers first, from where the device fetches them while host and
  /// device go on: twice the bytes of such a batch. Off: prefetch() may wait for the device.
  bool pin = true;
  /// Let a prefetched batch travel into device memory of its own while the step still reads the one before. Costs the
  /// bytes of a batch. Off: advance() makes the copy from the host, on the current stream. Without effect on the CPU.
  bool double_buffer = true;
  /// Lengths to which tensors of variable length are padded; without sizes: all batches have the shapes of the first.
  Buckets buckets = {};
  /// What messages and BucketPadding::tensor call a tensor within its microbatch, for wrappers that take batches apart
  /// themselves; empty: its path, "['tokens'][0]".
  std::function<std::string(std::size_t microbatch, std::size_t tensor)> path_of = {};
};

/// The batch that a captured step reads: tensors at fixed addresses, one set per microbatch, filled asynchronously.
///
///     pianola::StaticInputs inputs(device);
///     inputs.load(loader.next());
///     graph.capture([&] { step(inputs.microbatches()); });
///     graph.replay();
///     while (auto batch = loader.next()) {
///       inputs.load(*batch);   // travels while the replay before it still runs
///       graph.replay();        // reads it
///     }
///
/// A batch is one value per microbatch: tensors, None, numbers and strings, nested in lists, tuples and maps. The first
/// batch fixes all but the tensors' values; a microbatch may have another structure than the next. A batch that differs
/// is refused, and nothing is changed then. Static tensors lie as those of the first batch do (channels last, say);
/// those with gaps or repeated elements are made dense. They do not require grad.
///
/// When are the tensors of a batch read? In host memory that is not pinned: during prefetch(), or, on a device with
/// neither `pin` nor `double_buffer`, during advance(). Pinned or on a device: until the work that advance() has put on
/// the current stream is done; do not write to them before. A tensor that is the static one itself is not copied.
///
/// With buckets there is one set of static tensors per bucket, in the same memory: loading a batch of another bucket
/// overwrites them.
///
/// Streams:  advance() works on the current stream of the device, which must be the one of the step's replays, or one
///           that waits for them; prefetch() on a stream of its own.
/// Host:     Nothing synchronizes, but prefetch() waits until the batch before the last one has left the host
///           buffers. The first batch allocates; pinned buffers are allocated when the first tensor needs them.
/// Threads:  One call at a time per object.
class PIANOLA_API StaticInputs {
 public:
  /// @throws UsageError   Buckets that are not ascending.
  /// @throws DeviceError  There is no such device.
  explicit StaticInputs(c10::Device device, StaticInputsOptions options = {});
  StaticInputs(StaticInputs&&) noexcept;
  StaticInputs& operator=(StaticInputs&&) noexcept;
  /// Waits until no copy reads host memory any more. A static one does not: it ends with the process.
  ~StaticInputs();

  /// Starts the next batch on its way; the current one stays until advance().
  ///
  /// @throws UsageError  The batch differs from the first one (number of microbatches, keys, lengths of lists, None,
  ///                     numbers, strings, shapes, dtypes), is longer than the largest bucket, a prefetched batch waits
  ///                     for advance() already, or a capture is open on this thread. Nothing has changed.
  void prefetch(const std::vector<c10::IValue>& batch);
  /// Makes the prefetched batch the current one, after all that was put on the current stream so far.
  /// @throws UsageError  Nothing was prefetched, or a capture is open on this thread.
  void advance();
  /// prefetch() and advance(): the batch travels while the device still works on what is on the current stream. Call
  /// them apart where the host has something to do in between, such as launching the step of the batch before.
  void load(const std::vector<c10::IValue>& batch);

  /// The current batch, around the static tensors: the same ones each time, per bucket.
  /// @throws UsageError  Nothing was loaded yet.
  [[nodiscard]] const std::vector<c10::IValue>& microbatches() const;
  /// The static tensors alone, of all microbatches in order. @throws UsageError  As microbatches().
  [[nodiscard]] const std::vector<at::Tensor>& tensors() const;
  /// The length of the current batch's bucket; 0 without buckets, or before the first batch.
  [[nodiscard]] std::int64_t bucket() const noexcept;
  /// Calls `visit(length)` for each bucket, from the largest to the smallest, with the current batch in it: padded, or
  /// cut off where the bucket is shorter. For capturing the graphs of all buckets, largest first, so that they can
  /// share memory. The current batch is as before then, also when `visit` throws. Allocates for a moment.
  ///
  /// Without buckets there is one, of length 0.
  /// @throws UsageError  Nothing was loaded yet, or a capture is open on this thread.
  void for_each_bucket(const std::function<void(std::int64_t length)>& visit);

  /// A number above 0 that names the static tensors of the current bucket: no others of this process have it.
  /// @throws UsageError  As microbatches().
  [[nodiscard]] std::int64_t key() const;

  [[nodiscard]] c10::Device device() const noexcept;
  /// Bytes on the device: the static tensors, and as many for the batch that travels. 0 before the first batch.
  [[nodiscard]] std::size_t bytes() const noexcept;
  /// What each bucket was used for, ascending; one of length 0 without buckets; none before the first batch.
  [[nodiscard]] std::vector<BucketUse> bucket_uses() const;
  /// Memory, and what padding wastes.
  [[nodiscard]] Report report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pianola
