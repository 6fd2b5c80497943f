#pragma once
#include <pianola/graph/memory_forecast.hpp>
#include <pianola/trace/block_log.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace pianola::graph {

/// What a forecast needs of a run, beside its operations.
struct SeenMemory {
  std::vector<trace::StepBlock> blocks;  ///< Of the device that the graph will be on.
  std::uint64_t written = 0;             ///< There, of memory that was there before: a capture copies it aside.
};

/// While it lives, and while an OpStream shows it a run, notes what a forecast needs of it. Stands beside the trace's recorder.
class RunMemory final : public trace::OpObserver {
 public:
  using Of = trace::AllocatorWatch::Of;
  /// @param of  What the blocks are looked for in: Of::cuda, or with_frees.
  explicit RunMemory(Of of = Of::with_frees) : blocks_(of) {}

  void on_op_begin(const trace::OpSpan& op) override;

  /// To be called while it lives, when the run is over.
  /// @throws UnsupportedError  Somebody's own allocator is in the place of torch's, and does not tell what it hands out.
  [[nodiscard]] SeenMemory on(c10::Device device) const;

 private:
  using DeviceName = std::pair<c10::DeviceType, c10::DeviceIndex>;

  trace::BlockLog blocks_;
  ska::flat_hash_set<const c10::StorageImpl*> seen_;  // written, whole storages
  std::map<DeviceName, std::uint64_t> written_;
};

/// Its sizes, and what the device has left now; without a plan, and without who has what. @param trace  Of the run.
[[nodiscard]] MemoryForecast sizes_of(const SeenMemory& run, const OpTrace& trace, c10::Device device);
/// All of it. Slow: call sites are read. @param trace  With them.
[[nodiscard]] MemoryForecast forecast_of(const SeenMemory& run, const OpTrace& trace, c10::Device device);

/// Runs the step, and tells what a graph of it would take.
[[nodiscard]] MemoryForecast forecast_of_run(const std::function<void()>& step, c10::Device device);

/// The device by its number, whose allocator is there.
/// @param function  That was called, for messages.
/// @throws UsageError  `warmup` is negative, or a capture is open.
/// @throws DeviceError, UnsupportedError  As Graph.
[[nodiscard]] c10::Device ready_to_predict(std::string_view function, c10::Device device, int warmup);

}  // namespace pianola::graph
