#include <pianola/graph/scope_forecast.hpp>

#include <pianola/core/number_check.hpp>
#include <pianola/core/report_format.hpp>
#include <pianola/graph/account/executable_forecast.hpp>
#include <pianola/graph/allocator_settings.hpp>
#include <pianola/graph/run_memory.hpp>
#include <pianola/graph/step_parts.hpp>
#include <pianola/memory/allocator_model.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/trace_recorder.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/blas_workspaces.hpp>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace pianola {
namespace {

// Note [Memory of a scope, from an observed run]
// Blocks belong to the operation in which they are made; the model of torch's allocator (memory/allocator_model.hpp) runs those of a scope
// in the order in which the step made and freed them. A layer that is a callable of its own has a pool for its forward and its backward
// pass, as one callable with one slot has. What is alive when the last operation of a scope is over is a result.

// Where each operation's inputs were made.
struct ReadMemory {
  const void* storage;
  std::int32_t made_in;  // the operation; -1: before the step
  std::uint64_t bytes;
  bool written;
};

// One run, and what each operation of it reads.
class ObservedStep {
 public:
  ObservedStep(const std::function<void()>& step, c10::Device device) : device_(device) {
    graph::RunMemory memory;
    TraceRecorder recorder;
    {
      const trace::OpStream stream({&memory, &recorder});
      step();
      stream.check();
    }
    trace_ = recorder.take();
    seen_ = memory.on(device);
    note_reads();
  }

  [[nodiscard]] const OpTrace& trace() const noexcept { return trace_; }
  [[nodiscard]] const graph::SeenMemory& memory() const noexcept { return seen_; }
  [[nodiscard]] const std::vector<ReadMemory>& reads_of(std::size_t operation) const { return reads_[operation]; }
  [[nodiscard]] c10::Device device() const noexcept { return device_; }

 private:
  // A result that lies in the memory of an input was made where that was.
  void note_reads() {
    std::unordered_map<const void*, std::int32_t> made_in;
    for (const OpRecord& op : trace_.ops()) {
      std::vector<ReadMemory>& reads = reads_.emplace_back();
      for (const TensorRecord& tensor : trace_.inputs(op)) {
        if (tensor.storage == nullptr || tensor.device != device_ || tensor.number) continue;
        const auto known = tensor.made_in_step ? made_in.find(tensor.storage) : made_in.end();
        reads.push_back({.storage = tensor.storage,
                         .made_in = known == made_in.end() ? -1 : known->second,
                         .bytes = tensor.span_bytes,
                         .written = tensor.written});
      }
      for (const TensorRecord& tensor : trace_.outputs(op)) {
        const bool is_new = std::none_of(reads.begin(), reads.end(),
                                         [&](const ReadMemory& one) { return one.storage == tensor.storage; });
        if (is_new && tensor.storage != nullptr) made_in[tensor.storage] = static_cast<std::int32_t>(reads_.size()) - 1;
      }
    }
  }

  c10::Device device_;
  OpTrace trace_;
  graph::SeenMemory seen_;
  std::vector<std::vector<ReadMemory>> reads_;  // by operation
};

using Inside = std::function<bool(std::size_t operation)>;
using MadeAt = std::pair<const void*, std::int32_t>;  // a storage, and where it was made: names are used again

std::uint64_t sum_of(const std::map<MadeAt, std::uint64_t>& memory) {
  std::uint64_t bytes = 0;
  for (const auto& [one, most] : memory) bytes += memory::in_whole_units(most);
  return bytes;
}

// Adds what graphs of these operations take that have one pool.
void add_pool(PredictedScope& scope, const ObservedStep& step, const Inside& inside) {
  std::int32_t last = -1;
  for (std::size_t i = 0; i < step.trace().ops().size(); ++i) {
    if (inside(i)) last = static_cast<std::int32_t>(i);
  }
  std::vector<memory::Block> lives;
  std::uint64_t results = 0;
  for (const trace::StepBlock& block : step.memory().blocks) {
    if (!inside(static_cast<std::size_t>(block.made_in))) continue;  // -1, before the first, is of no part
    lives.push_back(block.life);
    lives.back().bytes = memory::in_whole_units(block.life.bytes);
    if (block.life.freed == memory::Block::kNever || block.freed_in > last) results += lives.back().bytes;
  }
  const std::uint64_t pool = memory::pool_bytes(lives, graph::allocator_settings());
  scope.pool += pool;
  scope.results += results;
  scope.scratch += pool - std::min(pool, results);
}

// Adds their static inputs, and what a capture copies aside.
void add_outside(PredictedScope& scope, const ObservedStep& step, const Inside& inside,
                 const std::vector<const void*>& given) {
  std::map<MadeAt, std::uint64_t> inputs, written;
  for (std::size_t i = 0; i < step.trace().ops().size(); ++i) {
    if (!inside(i)) continue;
    for (const ReadMemory& read : step.reads_of(i)) {
      const bool is_made_outside = read.made_in >= 0 && !inside(static_cast<std::size_t>(read.made_in));
      const bool is_given = read.made_in < 0 && std::find(given.begin(), given.end(), read.storage) != given.end();
      const auto note = [&](std::map<MadeAt, std::uint64_t>& memory) {
        std::uint64_t& most = memory[{read.storage, read.made_in}];
        most = std::max(most, read.bytes);
      };
      if (is_made_outside || is_given) {
        note(inputs);
      } else if (read.written && read.made_in < 0) {
        note(written);
      }
    }
  }
  scope.inputs += sum_of(inputs);
  scope.copied += sum_of(written);
}

void judge(PredictedScope& scope, const MemoryForecast& of_step) {
  MemoryForecast forecast;
  forecast.device = of_step.device;
  forecast.pool = scope.pool;
  forecast.executable = scope.executable;
  forecast.copied = scope.copied + scope.inputs;  // torch's allocator has room for both
  forecast.free = of_step.free;
  forecast.cached = of_step.cached;
  forecast.returnable = of_step.returnable;
  scope.fits = forecast.fits();
  scope.verdict = forecast.verdict();
}

class ScopesOfStep {
 public:
  ScopesOfStep(const ObservedStep& step, const MemoryForecast& of_step, std::vector<const void*> given)
      : step_(step), of_step_(of_step), parts_(step.trace()), given_(std::move(given)) {}

  [[nodiscard]] std::vector<PredictedScope> all() const {
    return {layers(), forward_and_backward(), without_optimizer(), whole_iteration()};
  }

 private:
  [[nodiscard]] PredictedScope of(std::string name, const Inside& inside) const {
    PredictedScope scope{.name = std::move(name)};
    add_pool(scope, step_, inside);
    add_outside(scope, step_, inside, given_);
    finish(scope, inside);
    return scope;
  }
  void finish(PredictedScope& scope, const Inside& inside) const {
    scope.executable = graph::forecast_executable(step_.trace(), inside);
    judge(scope, of_step_);
  }
  [[nodiscard]] bool has_backward(const Inside& inside) const {
    for (std::size_t i = 0; i < step_.trace().ops().size(); ++i) {
      if (parts_.of(i).backward && inside(i)) return true;
    }
    return false;
  }

  [[nodiscard]] PredictedScope layers() const {
    if (parts_.layers() == 0) return {.name = "each layer", .obstacle = "no user scope names a layer"};
    PredictedScope scope{.name = "each layer"};
    for (std::size_t layer = 0; layer < parts_.layers(); ++layer) {
      const Inside inside = [&](std::size_t i) { return parts_.of(i).layer == static_cast<std::int32_t>(layer); };
      add_pool(scope, step_, inside);
      add_outside(scope, step_, inside, given_);
      scope.graphs += has_backward(inside) ? 2 : 1;
    }
    finish(scope, [&](std::size_t i) { return parts_.of(i).layer >= 0; });
    return scope;
  }

  [[nodiscard]] PredictedScope forward_and_backward() const {
    const Inside inside = [&](std::size_t i) {
      const graph::StepPart& part = parts_.of(i);
      return parts_.models() != 0 ? part.model >= 0 : part.ahead && !part.optimizer;
    };
    PredictedScope scope = of("forward and backward", inside);
    scope.graphs = std::max<std::size_t>(parts_.models(), 1) * (has_backward(inside) ? 2 : 1);
    return scope;
  }

  [[nodiscard]] PredictedScope without_optimizer() const {
    if (!parts_.has_optimizer()) {
      return {.name = "iteration without optimizer", .obstacle = "no user scope names an optimizer's step"};
    }
    PredictedScope scope = of("iteration without optimizer", [&](std::size_t i) { return !parts_.of(i).optimizer; });
    scope.graphs = 1;
    return scope;
  }

  [[nodiscard]] PredictedScope whole_iteration() const {
    PredictedScope scope = of("whole iteration", [](std::size_t) { return true; });
    scope.graphs = 1;
    scope.copied = of_step_.copied;  // by whole storages
    judge(scope, of_step_);
    return scope;
  }

  const ObservedStep& step_;
  const MemoryForecast& of_step_;
  const graph::StepParts parts_;
  const std::vector<const void*> given_;
};

// Note [What lanes may add]
// Each lane has a workspace of cuBLAS, and memory that the step frees waits before it is used again: if it were never used again, a pool
// would hold all that the step is handed out. What is made in fact depends on the plan, which needs a capture.
LanesForecast most_of_lanes(const MemoryForecast& of_step, const ScopeForecastOptions& options) {
  LanesForecast lanes{.lanes = options.lanes};
#if PIANOLA_WITH_CUDA
  if (of_step.device.is_cuda()) {
    const int workspaces = options.parallel.workspaces == 0 ? options.lanes : options.parallel.workspaces;
    lanes.workspaces = static_cast<std::uint64_t>(workspaces) * graph::WorkspaceColours::bytes_each();
  }
#endif
  if (options.parallel.reuse_delay > 0) lanes.reuse = of_step.handed_out - std::min(of_step.handed_out, of_step.pool);
  lanes.at_most = std::min<std::uint64_t>(lanes.workspaces + lanes.reuse, options.parallel.memory_limit);
  return lanes;
}

ReportTable table_of_scopes(const std::vector<PredictedScope>& scopes) {
  ReportTable table("scopes", "Scopes",
                    {{"scope"},
                     {"graphs"},
                     {"pool_bytes", "pool", "bytes"},
                     {"scratch_bytes", "scratch", "bytes"},
                     {"result_bytes", "results", "bytes"},
                     {"input_bytes", "inputs", "bytes"},
                     {"copied_bytes", "copied aside", "bytes"},
                     {"executable_bytes", "executables", "bytes"},
                     {"fits"}});
  for (const PredictedScope& one : scopes) {
    if (!one.obstacle.empty()) {
      table.row({one.name, {}, {}, {}, {}, {}, {}, {}, {}});
    } else {
      table.row({one.name, one.graphs, one.pool, one.scratch, one.results, one.inputs, one.copied, one.executable,
                 one.fits ? ReportValue(*one.fits ? "yes" : "no") : ReportValue()});
    }
  }
  return table;
}

}  // namespace

Report ScopeForecast::report() const {
  Report report("Memory of graphs, by what is in them");
  report.fact("device", "device", device.str())
      .fact("free_bytes", "left to the driver", free ? ReportValue(*free) : ReportValue(), "bytes")
      .fact("cached_bytes", "unused in torch's allocator", free ? ReportValue(cached) : ReportValue(), "bytes")
      .fact("lanes", "lanes", lanes.lanes)
      .fact("lanes_bytes", "lanes add at most", lanes.at_most, "bytes")
      .fact("lane_workspace_bytes", "workspaces for lanes", lanes.workspaces, "bytes")
      .fact("lane_reuse_bytes", "if no lane used memory again", lanes.reuse, "bytes");
  std::vector<std::string> verdicts;
  for (const PredictedScope& one : scopes) {
    verdicts.push_back(one.obstacle.empty() ? fmt::format("{}: {}", one.name, one.verdict)
                                            : fmt::format("{}: not told: {}", one.name, one.obstacle));
  }
  report.list("verdict", "Verdict", verdicts);
  report.table(table_of_scopes(scopes));
  return report;
}

ScopeForecast predict_scopes(const std::function<void()>& step, c10::Device any_device,
                             const ScopeForecastOptions& options) {
  check_at_least(2, "lanes", options.lanes);
  ScopeForecast forecast;
  forecast.device = graph::ready_to_predict("predict_scopes()", any_device, options.warmup);
  for (int i = 0; i < options.warmup; ++i) step();
  const ObservedStep observed(step, forecast.device);
  const MemoryForecast of_step = graph::sizes_of(observed.memory(), observed.trace(), forecast.device);
  std::vector<const void*> given;
  for (const at::Tensor& input : options.inputs) {
    if (input.defined()) given.push_back(trace::storage_of(input));
  }
  forecast.scopes = ScopesOfStep(observed, of_step, std::move(given)).all();
  forecast.lanes = most_of_lanes(of_step, options);
  forecast.free = of_step.free;
  forecast.cached = of_step.cached;
  return forecast;
}

}  // namespace pianola
