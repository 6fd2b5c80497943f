#include <pianola/graph/memory_forecast.hpp>

#include <pianola/graph/run_memory.hpp>
#include <pianola/memory/capture_room.hpp>

namespace pianola {
namespace {

memory::CaptureMemory capture_of(const MemoryForecast& forecast) {
  return {.of_driver = forecast.pool + forecast.executable, .copies = forecast.copied};
}

std::optional<memory::FreeMemory> left_for(const MemoryForecast& forecast) {
  if (!forecast.free) return std::nullopt;
  return memory::FreeMemory{.of_driver = *forecast.free, .cached = forecast.cached, .returnable = forecast.returnable};
}

}  // namespace

std::optional<bool> MemoryForecast::fits() const {
  const auto room = left_for(*this);
  return room ? std::optional(memory::fits(capture_of(*this), *room)) : std::nullopt;
}

std::optional<bool> MemoryForecast::would_fit() const {
  const auto room = left_for(*this);
  return room ? std::optional(memory::would_fit(capture_of(*this), *room)) : std::nullopt;
}

std::string MemoryForecast::numbers() const { return memory::room_numbers(capture_of(*this), left_for(*this)); }

std::string MemoryForecast::verdict() const {
  const auto room = left_for(*this);
  if (!room) return "Whether it fits is not known: free memory is a GPU's, and this step runs on the CPU.";
  return memory::room_verdict(capture_of(*this), *room);
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
  const c10::Device device = graph::ready_to_predict("predict_memory()", any_device, warmup);
  for (int i = 0; i < warmup; ++i) step();
  return graph::forecast_of_run(step, device);
}

}  // namespace pianola
