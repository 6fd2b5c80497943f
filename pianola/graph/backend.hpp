#pragma once
#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/memory/step_run.hpp>
#include <pianola/parallel/lane_chart.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/op_trace.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::graph {

/// Makes the capture's stream current on this thread while it lives, ordered after the work before and before the work
/// after it. Nothing on the CPU.
class StreamScope {
 public:
  virtual ~StreamScope() = default;
};

/// How one kind of device records and replays. Graph and CaptureSession hold the order of the steps; a backend holds
/// what each step means. One backend object serves one Graph.
class Backend {
 public:
  virtual ~Backend() = default;

  /// The generators of this device that a step may draw from without naming them.
  [[nodiscard]] virtual std::vector<at::Generator> default_generators() const = 0;
  /// Whether recording runs the operations, so that what they wrote has to be put back.
  [[nodiscard]] virtual bool executes_while_recording() const noexcept = 0;
  /// @throws UsageError  This thread or its current stream is in another capture, or the options do not fit the device.
  virtual void check_may_capture(const CaptureOptions& options) const = 0;
  [[nodiscard]] virtual std::unique_ptr<StreamScope> enter(const CaptureOptions& options) = 0;

  /// Who takes part in the eager runs; the same again in observers().
  [[nodiscard]] virtual std::vector<trace::OpObserver*> warmup_observers() { return {}; }

  virtual void begin(const CaptureOptions& options) = 0;
  /// Who watches the operations between begin() and end(), after the trace; and what the trace asks the device for.
  [[nodiscard]] virtual std::vector<trace::OpObserver*> observers() = 0;
  [[nodiscard]] virtual TraceRecorderOptions recorder_options() = 0;
  /// Before end(): the recording communicates with other ranks, and shares its executable with no other graph.
  virtual void keep_executable_apart() {}
  /// Stops recording and makes what replay() runs. `trace` is nullptr where none was recorded. Returns a warning where
  /// the recording is empty and may be.
  /// @throws CaptureError  The recording is broken or empty; abandon() follows.
  virtual std::optional<std::string> end(const OpTrace* trace, const CaptureOptions& options) = 0;
  using SaveStorage = std::function<void(const c10::Storage&)>;
  /// Before begin(): memory that the recording asks for lies as a plan of this run's has it.
  virtual void plan_memory(memory::StepRun /*run*/) {}
  /// Before begin(), in place of plan_memory(): each block has bytes of its own in the recording, which never runs. In place of end(),
  /// end_ahead() ends it. See Note [Recorded ahead]. @param run  Before: its blocks take about as many bytes.
  virtual void record_ahead(memory::StepRun /*run*/) {}
  /// Drops such a recording. @return  Of the blocks of its stream, what its lanes keep apart; nullopt: it has none.
  /// @param run     What it was handed out. @param places  Where these blocks lay.
  /// @throws CaptureError  The recording is broken; abandon() follows.
  virtual std::optional<memory::StepRun> end_ahead(const OpTrace& /*trace*/, const memory::StepRun& /*run*/,
                                                   std::span<const ByteSpan> /*places*/) {
    return std::nullopt;
  }
  /// After end(): settles what replays run, where there is a choice. What it writes on the way it saves first.
  virtual void choose(const OpTrace* /*trace*/, const SaveStorage& /*save*/) {}
  /// After choose(), of a capture with CaptureOptions::instantiate off: the executable of an earlier one takes it over. Where this throws,
  /// the earlier one is as it was; else it lacks its executable, which its next replay would make anew. The operations are alike.
  /// See Note [Updates]. @throws CaptureError  Its nodes or edges are others.
  virtual void take_over(Backend& /*earlier*/, const OpTrace& /*captured*/, const OpTrace& /*now*/) {}
  /// Before the earlier capture goes: keeps what the executable still needs of it.
  virtual void keep_of(Backend& /*earlier*/) noexcept {}
  /// After enter(), where the capture does not come to its end, be it before begin(): stops recording, returns all memory, and leaves
  /// the device ready for the next capture.
  virtual void abandon() noexcept = 0;
  /// Why the recording is broken, if it is: valid from the first offence on, also after abandon().
  [[nodiscard]] virtual std::optional<Diagnosis> offence(const OpTrace* trace) const = 0;
  /// The same where an error of torch's came out of the step while it was recorded; nothing if it is the step's own.
  [[nodiscard]] virtual std::optional<Diagnosis> explain(const c10::Error& /*error*/, const OpTrace* trace) const {
    return offence(trace);
  }

  /// Brings `sources` into CaptureOptions::inputs with the next replay, or before it.
  virtual void copy_inputs(std::span<const at::Tensor> sources) = 0;
  /// The same for replay_operations().
  virtual void copy_inputs_now(std::span<const at::Tensor> sources) { copy_inputs(sources); }
  /// The next replay reads them as they are.
  virtual void keep_inputs() {}
  /// Makes the executable anew, or for the first time.
  virtual void instantiate() {}
  virtual void replay() = 0;
  /// Before the capture: which operations, counted from 1, set_number() will be called for. Asked while each is recorded.
  virtual void keep_numbers(std::function<bool(std::size_t operation)> /*wanted*/) {}
  /// Whether set_number() can be called for this argument of an operation. Lanes that nobody asked for are given up for it.
  [[nodiscard]] virtual bool has_number(std::size_t /*operation*/, std::size_t /*argument*/) { return false; }
  /// The next replays give the operation this number (or list of them), of the type that it had.
  virtual void set_number(std::size_t /*operation*/, std::size_t /*argument*/, const c10::IValue& /*value*/) {}
  /// Whether replays may run kernels that no operator launched in the capture: what those read and write nobody knows.
  [[nodiscard]] virtual bool runs_unknown_kernels() { return false; }
  /// Runs the operations from `first` to `last` alone.
  virtual void replay_operations(std::size_t /*first*/, std::size_t /*last*/) {}
  /// Whether replays from now on are of the call that was recorded, which has communicated with other ranks if
  /// executes_while_recording().
  virtual void repeat_recorded_call(bool /*repeat*/) {}
  /// Replays communicate by these process groups; a backend whose replays would wait for ever watches them.
  virtual void watch_replays(const std::vector<std::string>& /*groups*/, const std::string& /*collectives*/) {}
  /// An operation that a replay called: its number in the step, from 1.
  struct CalledOperation {
    std::size_t number = 0;
    const trace::OpInfo* info = nullptr;
  };
  /// After a replay that threw what an operation threw; nothing where it was another that threw.
  [[nodiscard]] virtual std::optional<CalledOperation> failed() const noexcept { return std::nullopt; }
  /// The last operation up to this one that a replay calls, so that it may throw; 0 if there is none.
  [[nodiscard]] virtual std::size_t last_called(std::size_t /*operation*/) const noexcept { return 0; }
  virtual void reset() noexcept = 0;

  [[nodiscard]] virtual GraphPoolRef pool() const = 0;
  virtual void describe(GraphInfo& info) const = 0;
  /// All of GraphMemory but what the recording shows.
  virtual void account(GraphMemory& memory) const = 0;
  virtual void write_dot(std::ostream& out, const OpTrace* trace) const = 0;
  /// What CaptureOptions::branches planned; nullptr where there is no plan.
  [[nodiscard]] virtual const parallel::LaneChart* lanes() const noexcept { return nullptr; }
  [[nodiscard]] virtual void* raw_graph() const noexcept { return nullptr; }
  [[nodiscard]] virtual void* raw_executable() const noexcept { return nullptr; }
};

std::unique_ptr<Backend> make_tape_backend();
#if PIANOLA_WITH_CUDA
std::unique_ptr<Backend> make_cuda_backend(c10::Device device);
#endif
/// The pool that a capture with these options goes to.
std::shared_ptr<PoolState> pool_for(const CaptureOptions& options, c10::Device device);
/// The backend of a usable device.
std::unique_ptr<Backend> make_backend(c10::Device device);

}  // namespace pianola::graph
