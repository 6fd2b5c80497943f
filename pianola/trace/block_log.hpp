#pragma once
#include <pianola/memory/block.hpp>
#include <pianola/memory/step_run.hpp>
#include <pianola/trace/allocator_events.hpp>
#include <pianola/trace/op_stream.hpp>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace pianola::trace {

/// A block that a step was given.
struct StepBlock {
  memory::Block life;          ///< Its moments are numbers of events: blocks handed out, and blocks freed.
  std::int32_t made_in = -1;   ///< Number of the last operation that had begun, from 0; -1: none had.
  std::int32_t freed_in = -1;  ///< The same of its end; -1 as well where it was not freed.
  c10::Device device = c10::Device(c10::kCPU);
  std::uintptr_t stream = 0;  ///< Of CUDA: that it was asked for on.
  std::uintptr_t address = 0;
  c10::MempoolId_t pool = {0, 0};  ///< Of CUDA: that it lies in.
  bool by_own_thread = false;      ///< Asked for by the thread on which the log began.
};

/// While it lives, and while an OpStream shows it the step's operations, notes the blocks of memory that torch's allocators
/// hand out: their lives, by event and by operation. Of the CPU what this thread is given, of CUDA what all threads are.
class BlockLog final : public OpObserver, private AllocatorListener {
 public:
  /// @param of  AllocatorWatch::Of::cuda: of CUDA alone; then it may end on another thread than it began on.
  explicit BlockLog(AllocatorWatch::Of of = AllocatorWatch::Of::with_frees);

  [[nodiscard]] OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const OpSpan& op) override;

  /// From any thread: notes nothing more.
  void stop() noexcept { stopped_ = true; }
  /// Whether logs that are open see the device's memory: not where somebody's own allocator is in the place of torch's.
  [[nodiscard]] static bool sees(c10::Device device);
  /// So far, of all devices, in the order in which they were handed out.
  [[nodiscard]] std::vector<StepBlock> blocks() const;
  /// The same of one.
  /// @throws UnsupportedError  Somebody's own allocator is in the place of torch's, and does not tell what it hands out.
  [[nodiscard]] std::vector<StepBlock> blocks(c10::Device device) const;
  /// The next event's.
  [[nodiscard]] memory::Moment now() const;
  /// What each operation was that began, in order.
  [[nodiscard]] std::vector<const void*> operations() const;

 private:
  void on_memory(const AllocatorEvent& event) override;
  [[nodiscard]] std::int32_t last_operation() const noexcept {
    return static_cast<std::int32_t>(operations_.size()) - 1;
  }

  const std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> stopped_ = false;
  mutable std::mutex mutex_;
  std::vector<const void*> operations_;
  memory::Moment events_ = 0;
  std::vector<StepBlock> blocks_;
  ska::flat_hash_map<std::uintptr_t, std::size_t> live_;  // by address
  AllocatorWatch watch_;                                  // behind what it writes
};

/// Those of one device.
[[nodiscard]] std::vector<StepBlock> blocks_on(c10::Device device, const std::vector<StepBlock>& blocks);
/// The run that they are of. Blocks of other threads tell nothing of its main stream: another thread may run a step of its own.
/// @param operations  BlockLog::operations().
[[nodiscard]] memory::StepRun run_of(const std::vector<StepBlock>& blocks, std::vector<const void*> operations);

}  // namespace pianola::trace
