#include <pianola/graph/run_memory.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/graph/account/block_picture.hpp>
#include <pianola/graph/account/executable_forecast.hpp>
#include <pianola/graph/account/memory_left.hpp>
#include <pianola/graph/allocator_settings.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/memory/allocator_model.hpp>
#include <pianola/trace/arguments.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/Context.h>

#include <fmt/format.h>

namespace pianola::graph {
namespace {

void note_free_memory(MemoryForecast& forecast) {
  const std::optional<memory::FreeMemory> free = memory_left(forecast.device);
  if (!free) return;
  forecast.free = free->of_driver;
  forecast.cached = free->cached;
  forecast.returnable = free->returnable;
}

}  // namespace

void RunMemory::on_op_begin(const trace::OpSpan& op) {
  blocks_.on_op_begin(op);
  trace::for_each_argument(*op.info, op.inputs, [&](const at::Tensor& tensor, bool written) {
    const c10::StorageImpl* const storage = trace::storage_of(tensor);
    if (!written || storage == nullptr || op.memory->made(tensor) || !seen_.insert(storage).second) return;
    const c10::Device device = tensor.device();
    written_[{device.type(), device.index()}] += memory::in_whole_units(storage->nbytes());
  });
}

SeenMemory RunMemory::on(c10::Device device) const {
  SeenMemory seen{.blocks = blocks_.blocks(device), .written = 0};
  const auto written = written_.find({device.type(), device.index()});
  if (written != written_.end()) seen.written = written->second;
  return seen;
}

MemoryForecast sizes_of(const SeenMemory& run, const OpTrace& trace, c10::Device device) {
  MemoryForecast forecast;
  forecast.device = device;
  forecast.operations = trace.ops().size();
  forecast.blocks = run.blocks.size();
  std::vector<memory::Block> lives;
  lives.reserve(run.blocks.size());
  for (const trace::StepBlock& block : run.blocks) {
    lives.push_back(block.life);
    lives.back().bytes = memory::in_whole_units(block.life.bytes);
    forecast.handed_out += lives.back().bytes;
    if (block.life.freed == memory::Block::kNever) forecast.left += lives.back().bytes;
  }
  forecast.bound = memory::peak_bytes(lives);
  forecast.pool = memory::pool_bytes(lives, allocator_settings());
  forecast.copied = run.written;
  forecast.executable = forecast_executable(trace);
  note_free_memory(forecast);
  return forecast;
}

MemoryForecast forecast_of(const SeenMemory& run, const OpTrace& trace, c10::Device device) {
  MemoryForecast forecast = sizes_of(run, trace, device);
  BlockPicture seen = picture_of(run.blocks, trace);
  forecast.peak_place = std::move(seen.peak_place);
  forecast.at_peak = std::move(seen.at_peak);
  forecast.picture = std::move(seen.picture);
  forecast.picture.title = fmt::format("Memory of a step of {} operations on {}", forecast.operations,
                                       device.is_cpu() ? "the CPU" : device.str());
  forecast.picture.places = memory::plan_offsets(seen.lives);
  forecast.picture.pool = forecast.pool;
  forecast.planned = forecast.picture.places.bytes;
  forecast.bound = forecast.picture.places.bound;
  return forecast;
}

MemoryForecast forecast_of_run(const std::function<void()>& step, c10::Device device) {
  RunMemory memory;
  TraceRecorder recorder({.call_sites = true});
  {
    const trace::OpStream stream({&memory, &recorder});
    step();
    stream.check();
  }
  const OpTrace trace = recorder.take();
  return forecast_of(memory.on(device), trace, device);
}

c10::Device ready_to_predict(std::string_view function, c10::Device any_device, int warmup) {
  check_at_least(0, "warmup", warmup);
  const c10::Device device = usable_device(any_device);
  if (capture_is_open()) {
    throw UsageError({.what = fmt::format("{} was called while a capture is open on this thread", function),
                      .fix = "call it before: it runs the step"});
  }
  if (device.is_cuda())
    at::globalContext().lazyInitDevice(c10::kCUDA);  // the hook is put into an allocator that is there
  return device;
}

}  // namespace pianola::graph
