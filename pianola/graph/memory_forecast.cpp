#include <pianola/graph/memory_forecast.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/core/report_format.hpp>
#include <pianola/graph/account/block_picture.hpp>
#include <pianola/graph/account/executable_forecast.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/memory/allocator_model.hpp>
#include <pianola/trace/arguments.hpp>
#include <pianola/trace/block_log.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/Context.h>
#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/free_memory.hpp>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace pianola {
namespace {

// Of memory that was there before and that the step writes, whole storages: so a capture copies them.
class WrittenStorages final : public trace::OpObserver {
 public:
  explicit WrittenStorages(c10::Device device) : device_(device) {}

  void on_op_begin(const trace::OpSpan& op) override {
    trace::for_each_argument(*op.info, op.inputs, [&](const at::Tensor& tensor, bool written) {
      const c10::StorageImpl* const storage = trace::storage_of(tensor);
      if (!written || storage == nullptr || tensor.device() != device_ || op.memory->made(tensor)) return;
      if (seen_.insert(storage).second) bytes_ += memory::in_whole_units(storage->nbytes());
    });
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  c10::Device device_;
  std::set<const c10::StorageImpl*> seen_;
  std::uint64_t bytes_ = 0;
};

// What a run showed.
struct Run {
  std::vector<trace::StepBlock> blocks;
  OpTrace trace;
  std::uint64_t written = 0;
};

Run observe(const std::function<void()>& step, c10::Device device) {
  if (device.is_cuda())
    at::globalContext().lazyInitDevice(c10::kCUDA);  // the hook is put into an allocator that is there
  trace::BlockLog log;
  WrittenStorages written(device);
  TraceRecorder recorder({.call_sites = true});
  {
    const trace::OpStream stream({&log, &written, &recorder});
    step();
    stream.check();
  }
  return {.blocks = log.blocks(device), .trace = recorder.take(), .written = written.bytes()};
}

void note_free_memory([[maybe_unused]] MemoryForecast& forecast) {
#if PIANOLA_WITH_CUDA
  if (!forecast.device.is_cuda()) return;
  const graph::FreeMemory free = graph::free_memory_of(forecast.device.index());
  forecast.free = free.of_driver;
  forecast.cached = free.cached;
  forecast.returnable = free.returnable;
#endif
}

MemoryForecast judge(const Run& run, c10::Device device) {
  graph::BlockPicture seen = graph::picture_of(run.blocks, run.trace);
  MemoryForecast forecast;
  forecast.device = device;
  forecast.operations = run.trace.ops().size();
  forecast.blocks = run.blocks.size();
  forecast.handed_out = seen.handed_out;
  forecast.left = seen.left;
  forecast.peak_place = std::move(seen.peak_place);
  forecast.at_peak = std::move(seen.at_peak);
  forecast.picture = std::move(seen.picture);
  forecast.picture.title = fmt::format("Memory of a step of {} operations on {}", forecast.operations,
                                       device.is_cpu() ? "the CPU" : device.str());
  forecast.picture.places = memory::plan_offsets(seen.lives);
  forecast.picture.pool = forecast.pool = memory::pool_bytes(seen.lives);
  forecast.planned = forecast.picture.places.bytes;
  forecast.bound = forecast.picture.places.bound;
  forecast.copied = run.written;
  forecast.executable = graph::forecast_executable(run.trace);
  note_free_memory(forecast);
  return forecast;
}

}  // namespace

std::optional<bool> MemoryForecast::fits() const {
  if (!free) return std::nullopt;
  const std::uint64_t of_driver = pool + executable;
  return of_driver <= *free && of_driver + copied <= *free + cached;
}

std::string MemoryForecast::verdict() const {
  if (!free) return "Whether it fits is not known: free memory is a GPU's, and this step runs on the CPU.";
  const auto in_bytes = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const std::string numbers =
      fmt::format("a capture takes {} of the driver and {} for copies, and the driver has {} left.",
                  in_bytes(pool + executable), in_bytes(copied), in_bytes(*free));
  if (*fits()) return "It fits: " + numbers;
  const bool would_fit = pool + executable <= *free + returnable && pool + executable + copied <= *free + cached;
  if (!would_fit) return "It does not fit: " + numbers;
  return fmt::format("It does not fit yet: {} torch.cuda.empty_cache() gives {} back.", numbers, in_bytes(returnable));
}

Report MemoryForecast::report() const {
  Report report("Memory of a graph");
  report.fact("device", "device", device.str())
      .fact("operations", "operations", operations)
      .fact("blocks", "blocks handed out", blocks)
      .fact("handed_out_bytes", "bytes of these", handed_out, "bytes")
      .fact("bound_bytes", "in use at most", bound, "bytes")
      .fact("pool_bytes", "pool", pool, "bytes")
      .fact("planned_bytes", "pool, planned", planned, "bytes")
      .fact("left_bytes", "in use at the end", left, "bytes")
      .fact("copied_bytes", "copied aside by the capture", copied, "bytes")
      .fact("executable_bytes", "executable, about", executable, "bytes")
      .fact("free_bytes", "left to the driver", free ? ReportValue(*free) : ReportValue(), "bytes")
      .fact("cached_bytes", "unused in torch's allocator", free ? ReportValue(cached) : ReportValue(), "bytes")
      .fact("peak", "most is in use in", peak_place);
  report.list("verdict", "Verdict", {verdict()});
  report.table(graph::table_of(at_peak));
  return report;
}

MemoryForecast predict_memory(const std::function<void()>& step, c10::Device any_device, int warmup) {
  check_at_least(0, "warmup", warmup);
  const c10::Device device = graph::usable_device(any_device);
  if (graph::capture_is_open()) {
    throw UsageError({.what = "predict_memory() was called while a capture is open on this thread",
                      .fix = "call it before: it runs the step"});
  }
  for (int i = 0; i < warmup; ++i) step();
  return judge(observe(step, device), device);
}

}  // namespace pianola
