#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/memory/planned_space.hpp>
#include <pianola/memory/step_run.hpp>
#include <pianola/trace/op_stream.hpp>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace pianola::graph {

// Note [Blocks inside a block]
// A pool of torch's asks an allocator for segments, and lays blocks in them by itself: no plan can say where. So while a capture is
// recorded, an allocator of Pianola's stands before torch's, which hands out the places of a plan inside one block of torch's, and hands
// all else on. It stays there from the first such capture on: a block that outlives its capture may be given another stream, shared with
// another process or freed raw, and torch's allocator does not know it. The block of torch's lives as long as a block inside, or the graph.

/// Memory of one recording, in which blocks lie where a plan puts them. Has to be shown the recording's operations.
class PlannedMemory final : public trace::OpObserver {
 public:
  /// What `stream` asks for from now on, on any thread, is handed out by the plan; what the plan does not foresee, by torch's allocator.
  /// @param stream  It is current, is captured, and what it asks of torch's allocator goes to `pool`.
  /// @param run     Before.
  /// @return  nullptr where there is nothing to plan, or no room for the region.
  /// @throws UnsupportedError  Torch runs with another allocator than its native one, or is of a version that was not looked at.
  static std::shared_ptr<PlannedMemory> begin(c10::cuda::CUDAStream stream, c10::MempoolId_t pool,
                                              const memory::StepRun& run);
  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;
  /// No more is handed out.
  void end() noexcept;

  /// The blocks that are held in the region that lies there; nullopt: none does.
  static std::optional<std::vector<ByteSpan>> held_in(const ByteSpan& span);
  /// What no block holds of any region.
  static std::vector<std::pair<c10::Device, ByteSpan>> gaps();

  /// Its memory is not used again before the present work of this stream is done, once it is freed.
  void record_stream(c10::cuda::CUDAStream stream);

  [[nodiscard]] std::size_t bytes() const noexcept { return space_.bytes(); }

  class Allocator;
  PlannedMemory(c10::DataPtr memory, c10::cuda::CUDAStream stream, c10::MempoolId_t pool, memory::PlannedSpace space);
  PlannedMemory(const PlannedMemory&) = delete;
  PlannedMemory& operator=(const PlannedMemory&) = delete;
  ~PlannedMemory() override;

 private:
  c10::DataPtr memory_;
  c10::cuda::CUDAStream stream_;
  c10::MempoolId_t pool_;
  memory::PlannedSpace space_;  // under the allocator's lock while it is open
  bool is_open_ = true;         // the same
};

}  // namespace pianola::graph
