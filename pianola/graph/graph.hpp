#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/graph/number.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/parallel/branch_info.hpp>

#include <c10/core/Device.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {

class OpTrace;       // <pianola/trace/op_trace.hpp>
struct GraphMemory;  // <pianola/graph/account/graph_memory.hpp>

namespace graph {
class GraphNumbers;
}

/// What a captured graph holds and what making it cost.
struct GraphInfo {
  std::string backend;                       ///< "cuda" or "tape".
  std::size_t nodes = 0;                     ///< Nodes of the CUDA graph; on the tape, operations that replay runs.
  std::map<std::string, std::size_t> types;  ///< Nodes by type ("kernel", "memcpy", ...); on the tape, by operator.
  std::size_t kernels = 0;                   ///< Kernel nodes; 0 on the tape.
  std::size_t edges = 0;                     ///< Dependencies between nodes.
  std::size_t operations = 0;                ///< Top-level ATen operations recorded; 0 with `trace` off.
  std::size_t pool_bytes = 0;                ///< Bytes of the graph's pool, shared ones counted in full.
  std::size_t planned_bytes = 0;             ///< Of these, laid out by plans; a shared region counts in full.
  std::size_t planned_bound_bytes = 0;  ///< What no plan of the step's blocks, on its lanes, goes below; 0: not known.
  std::size_t executable_bytes = 0;     ///< Device memory taken by the executable, outside torch's allocator; 0 where
                                        ///< another graph that uses it counts it.
  bool shares_executable = false;       ///< Whether other graphs use it, too (GraphPool::Options::share_executables).
  std::size_t retained_bytes = 0;       ///< Bytes of outside tensors that the graph keeps alive.
  bool draws_random_numbers = false;    ///< Whether a replay advances a generator.
  std::chrono::microseconds warmup_time{};       ///< Host time of the eager runs.
  std::chrono::microseconds capture_time{};      ///< Host time of recording.
  std::chrono::microseconds agreement_time{};    ///< Until other ranks had stated what they hold; 0: it has none.
  std::chrono::microseconds instantiate_time{};  ///< Host time of making or updating the executable.
  std::vector<std::string> warnings;             ///< What is right but may surprise, one sentence each.
  std::optional<BranchInfo> branches;            ///< What CaptureOptions::branches came to, if it was asked for.

  [[nodiscard]] PIANOLA_API Report report() const;
};

/// Whether a capture of Pianola's is open on this thread, on any device: its warm-up included.
[[nodiscard]] PIANOLA_API bool is_capturing() noexcept;
/// Whether it records; not while it warms up, when the step does what eager does.
[[nodiscard]] PIANOLA_API bool is_recording() noexcept;

/// Work that was recorded once and is replayed with one launch.
///
/// On a CUDA device it is a CUDA graph; on the CPU it is the tape, which keeps the same promises: addresses and CPU
/// values are frozen, outputs are overwritten by the next replay, reading a value on the host while recording is
/// refused. A replay computes what eager would, bit for bit, given the same inputs, state and generators.
///
/// Threads:  One call at a time per object; any thread may call. A second call of one graph at the same time is refused by a
///           UsageError. GraphPool says what graphs that share a pool may do.
/// Moves:    Calls of a graph that was moved from are refused by a UsageError, but for captured(), reset() and its end.
class PIANOLA_API Graph {
 public:
  /// @throws DeviceError       There is no such device, or this build has no CUDA.
  /// @throws UnsupportedError  `device` is neither CUDA nor CPU.
  explicit Graph(c10::Device device);
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  /// Runs `step` eagerly `options.warmup` times, then records it once. The graph holds nothing else afterwards: with
  /// `restore`, tensors that existed before and generators are as they were, also when this throws. A `.grad` that was
  /// undefined before and that the step defines stays, filled with zeros, at the address that replays write.
  ///
  /// @throws CaptureError  The step cannot be captured; names the first offending operation, its line and the remedy. Or it
  ///                       did otherwise under capture than in the warm-up: see CaptureOptions::accept_capture_path.
  /// @throws UsageError    The graph holds a capture already (reset() it), another capture is open on this thread, or
  ///                       an option is out of range.
  /// @throws UnsupportedError  This torch has changed inside, so that replays might be wrong: see check_internals().
  /// Whatever `step` itself throws reaches the caller unchanged. After any throw the graph is empty and may capture again.
  /// Stream:  Waits for the current stream's work by event, and the current stream waits for the capture's. No
  ///          synchronization with the host unless a snapshot has to go to host memory.
  void capture(const std::function<void()>& step, const CaptureOptions& options = {});

  /// Captures `step`, as capture() does, in place of what the graph holds, and keeps the executable: it takes over the new capture's
  /// parameters, which costs a part of what making one does. For the same step with other tensors, shapes or numbers. The tape has no
  /// executable, but refuses another step in the same words.
  ///
  /// If it throws, whatever it throws, the graph holds the earlier capture, and replays it as before; but variables that the step assigned
  /// hold what it assigned last. Else the earlier capture is gone, as by reset(). Its memory is free when the new one has its own: there
  /// has to be room for both in the pool, which is that of the earlier capture where CaptureOptions::pool is empty.
  ///
  /// @throws CaptureError  As capture(). Or the step does other operations than the earlier capture, or CUDA cannot give the executable
  ///                       the nodes that they make now (a library chose other kernels for other shapes, say); names the first
  ///                       operation at fault.
  /// @throws UsageError    Nothing was captured. The graph was captured with `branches` or without `trace`, has numbers,
  ///                       communicates with other ranks or has parts that stay eager. `trace` or `instantiate` is off, `branches` is
  ///                       set, or there are not as many `inputs` as before. As capture() else.
  /// Stream:  As capture(). A replay that runs still does what was captured before.
  void update(const std::function<void()>& step, const CaptureOptions& options = {});

  /// A number that the step gives to its operations, and that may be another one at each replay: see Number. To be declared
  /// before the capture, which then warms up four times at least: some of these calls are trials with other values, whose
  /// writes are put back like all others. `trace` and `restore` have to be on.
  ///
  /// @throws UsageError  There is one of this name already, the name is empty, or the value is not finite. By a capture: the
  ///                     options do not go with numbers.
  /// @throws CaptureError  By a capture: an operation is given such a number in a way that no replay could follow.
  Number number(std::string name, double value);
  /// The one that was declared by this name. @throws UsageError  There is none.
  [[nodiscard]] Number number(std::string_view name) const;

  /// Runs what was captured, on the current stream of the graph's device; outputs hold new values when it is done. Inputs
  /// are read as they are.
  ///
  /// @throws UsageError   Nothing was captured, or by the process that this one was forked from; a capture is open on this
  ///                      thread: graphs do not nest; another thread warms up in the pool; the last replay in the pool
  ///                      went to another stream that is being captured now; or a number was set that the graph cannot be
  ///                      given: see Number::set.
  /// @throws ReplayError  A result of another graph of the pool, which this graph reads, has been overwritten; nothing
  ///                      was launched. With CheckMode::strict: a tensor from outside that the step used is gone or
  ///                      has moved; nothing was launched either. So it is where one was given other memory while the
  ///                      graph's pool slept, if the capture had the trace. Or CUDA refused the launch.
  /// On the tape, what an operation throws (an index out of range) reaches the caller as eager mode throws it, its place
  /// added to torch's errors. The operations before it have done their work, those after it have not; the graph is whole.
  /// Does not synchronize and allocates nothing.
  void replay();

  /// The same, after copying `sources` into CaptureOptions::inputs, one for each: same shape, any memory of the device.
  /// One that is undefined fills its input with zeros; one that is the input's own memory is not copied.
  ///
  /// @throws UsageError  Another number of tensors than the inputs of the capture, or another shape; nothing was launched.
  void replay(std::span<const at::Tensor> sources);

  /// Makes the executable from the captured graph as it is now, in place of an earlier one; for
  /// CaptureOptions::instantiate off, or after tools changed the captured graph. Nothing to do on the tape.
  ///
  /// @throws UsageError  Nothing was captured, or the graph's pool sleeps.
  void instantiate();

  /// GraphPool::suspend() and resume() of the graph's pool, where no other graph is in it.
  /// @throws UsageError  Nothing was captured; another living graph shares the pool, and would sleep, too: suspend the pool. And what the
  ///                     pool's throw.
  std::size_t suspend(const SuspendOptions& options = {});
  void resume();

  /// Drops the capture and its memory; the graph can capture again. @throws UsageError  A call of the graph is running.
  void reset();

  [[nodiscard]] bool captured() const noexcept;
  /// If an operation threw in the last replay: its number in the step, from 1; else 0.
  [[nodiscard]] std::size_t failed_operation() const noexcept;
  [[nodiscard]] c10::Device device() const noexcept;
  /// The pool of this graph, to share with the next one. @throws UsageError  Nothing was captured.
  [[nodiscard]] GraphPoolRef pool() const;
  /// @throws UsageError  Nothing was captured.
  [[nodiscard]] GraphInfo info() const;
  /// What it has of the device's memory now, and who has what of its pool when. Reads debug information for the lines: slow.
  /// @throws UsageError  Nothing was captured.
  [[nodiscard]] GraphMemory memory() const;
  /// The operations that were recorded; nullptr with `trace` off. @throws UsageError  Nothing was captured.
  [[nodiscard]] const OpTrace* trace() const;
  /// The executable's raw handle (a cudaGraphExec_t), for tools; nullptr on the tape and before instantiate(). Borrowed, valid until reset(),
  /// or until the graph's pool sleeps without executables. Where update() was called, it knows its nodes by those of an earlier graph;
  /// where graphs share it, by those of the one that it was made of, and has the parameters of the one that was replayed last.
  [[nodiscard]] void* raw_executable() const;
  /// The captured graph's raw handle (a cudaGraph_t); nullptr on the tape. Borrowed, valid until reset() or update().
  [[nodiscard]] void* raw_graph() const;
  /// Writes the graph in Graphviz's language: nodes with kernel and operation, edges. @throws UsageError  Not captured,
  /// or the file cannot be written.
  void dump_dot(const std::filesystem::path& file) const;
  /// Draws the lanes of CaptureOptions::branches as an SVG picture: what runs beside what, by the model's times.
  /// @throws UsageError  Not captured, captured without `branches`, or the file cannot be written.
  void dump_lanes(const std::filesystem::path& file) const;

 private:
  friend class CaptureScope;
  friend class graph::GraphNumbers;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Captures the code between construction and end(), for code that cannot be a lambda. There is no warm-up: run the
/// code eagerly first. A scope that ends without end() abandons the capture; the graph is then empty.
///
///     pianola::Graph graph(device);
///     pianola::CaptureScope scope(graph);
///     y = model->forward(x);
///     scope.end();
///
/// While it is open, the capture stream is the current stream of this thread.
class PIANOLA_API CaptureScope {
 public:
  /// @throws UsageError, CaptureError  As Graph::capture; nothing has begun then.
  explicit CaptureScope(Graph& graph, CaptureOptions options = {.warmup = 0});
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
  ~CaptureScope();

  /// Ends the capture and makes the executable. @throws CaptureError  As Graph::capture.
  /// @throws UsageError  (this and fail()) The scope has ended; or another thread began it: it is still open then.
  void end();
  /// The code threw `error`: abandons the capture. Throws a CaptureError that names the operation if the capture caused
  /// it; rethrows `error` otherwise.
  [[noreturn]] void fail(std::exception_ptr error);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pianola
