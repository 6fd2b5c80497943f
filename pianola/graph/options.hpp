#pragma once
#include <pianola/graph/pool.hpp>
#include <pianola/parallel/options.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// What CUDA refuses while a capture runs (cudaStreamCaptureMode). The tape has no such modes and ignores it.
enum class CaptureMode {
  global,         ///< Unsafe calls of any thread break the capture.
  thread_local_,  ///< Only unsafe calls of the capturing thread do.
  relaxed,        ///< None does; a call that really touches the capturing stream still fails.
};

/// What each replay makes sure of before it launches; nothing of it waits for the device.
enum class CheckMode {
  standard,  ///< The graph is whole, its process is this one, and what it reads in a shared pool is still there.
  /// Also, that each tensor from outside that the captured step used is still held by somebody and has the same memory;
  /// else a ReplayError names it. A few nanoseconds a tensor.
  strict,
};

/// A tensor and what its owner calls it: "model.0.weight".
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// How Graph::capture warms up, records and cleans up. Every field has a safe default.
struct CaptureOptions {
  /// Eager runs before recording, on the capture stream; raise it if autotuning or DDP settles later. 0: none.
  int warmup = 3;
  /// Pool to share with other graphs; empty: one of its own.
  GraphPoolRef pool = {};
  /// Generators, besides the device's default one, that the step draws from.
  std::vector<at::Generator> generators = {};
  /// Tensors that the step reads and that replay(inputs) fills: the copies are part of the graph, which spares their
  /// launches. Dense, on the graph's device.
  std::vector<at::Tensor> inputs = {};
  /// Rebuild the graph with only its true dependencies, on at most this many parallel lanes (8 at most): independent work
  /// then runs at once, with the same numbers. 0 or 1: as captured. 4 suits most steps. Every rebuilt graph is proved to
  /// keep the order that the step needs. The graph stays as captured if the proof fails, or if nothing would be gained;
  /// GraphInfo::branches says why. Needs `trace`. On the tape the plan is made and proved, and
  /// operations run one after the other. kAutoBranches: where it is faster.
  int branches = 0;
  /// How `branches` goes about it.
  ParallelOptions parallel = {};
  /// What each replay checks. `strict` needs `trace`.
  CheckMode check = CheckMode::standard;
  /// Names of tensors, for messages.
  std::vector<NamedTensor> names = {};
  /// See CaptureMode; thread_local_ lets data loaders and other threads go on.
  CaptureMode mode = CaptureMode::thread_local_;
  /// Put back what warm-up and recording wrote: tensors, gradients, generators. Off: the warm-up runs count as steps.
  /// A gradient that the step throws away (set_to_none) before it uses the parameter is gone, as in eager.
  /// On CUDA the tensors are copied aside on the device, or in host memory where the device has no room.
  bool restore = true;
  /// Record the operations: errors name the first offending one and its line, inputs are retained, and replays of
  /// graphs that share a pool are checked. Off saves host time at capture and gives all of that up.
  bool trace = true;
  /// Most bytes that the graph's pool may take, as predict_memory() tells them for the last warm-up run; 0: no limit. A step that takes
  /// more is refused (OutOfMemoryError) before anything is recorded, and so is one whose `inputs` alone take more, before it runs. Wants a
  /// warm-up run; with one only, what a first run makes and keeps (workspaces, states of optimizers) counts too.
  std::size_t memory_limit = 0;
  /// Lay the blocks of the graph's pool out by a plan, made of the last warm-up run: without the fragments that torch's allocator leaves,
  /// they take little more than the step has in use at a time. What the recording asks for otherwise than that run lies outside of
  /// the plan. Other graphs of the pool do not use that memory, but of a pool that plans it for all (GraphPool::Options). Wants a warm-up
  /// run. With `branches`, and with accept_capture_path, the step is recorded twice: the first recording shows what the second one asks for
  /// and which lanes it has, and the plan keeps apart what they use at once. What one run leaves for the next is refused then, unless it is
  /// written in place. kAutoBranches does without lanes, and so does a step that communicates. What torch's allocator hands out goes through one
  /// of Pianola's from then on. The tape keeps all results: nothing is planned there.
  bool plan_memory = false;
  /// Accept a recording whose operations, or the numbers they were given, differ from those of the last warm-up call,
  /// because a library asked whether it is captured. Off: it is refused, if there were two warm-up calls at least, the last
  /// two did the same, and `trace` is on.
  bool accept_capture_path = false;
  /// Let the step set a generator to a state that it saved itself, as torch.utils.checkpoint does to draw the same numbers
  /// again. Off where the state may come from another capture. The tape always refuses it.
  bool set_generators = true;
  /// Let the step communicate with other ranks, by the collectives of torch.distributed. Off where what is captured is a part,
  /// whose communication begins or ends outside of it.
  bool communication = true;
  /// Off: the step makes no gradients. Of leaves it reads the values alone: neither their gradients nor what autograd keeps for them is
  /// looked at or put back, since another thread may train them meanwhile.
  bool differentiates = true;
  /// Make the executable at the end of the capture. Off: Graph::instantiate() or the first replay does, so that tools can
  /// change the captured graph (Graph::raw_graph) before.
  bool instantiate = true;
  /// Let a capture that recorded nothing pass, with a GraphInfo warning, as torch does; its replays do nothing.
  bool allow_empty = false;
  /// Stream to capture on; empty: the pool's own. Never the default stream, which CUDA cannot capture.
  std::optional<c10::Stream> stream = {};
};

}  // namespace pianola
