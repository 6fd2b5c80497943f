#include <pianola/graph/memory_forecast.hpp>

#include <pianola/core/report_format.hpp>
#include <pianola/graph/run_memory.hpp>

#include <fmt/format.h>

namespace pianola {
namespace {

// Room for a pool and its executable, and beside them for copies.
bool is_enough(const MemoryForecast& forecast, std::uint64_t of_driver) {
  const std::uint64_t taken = forecast.pool + forecast.executable;
  return taken <= of_driver && taken + forecast.copied <= *forecast.free + forecast.cached;
}

}  // namespace

std::optional<bool> MemoryForecast::fits() const {
  if (!free) return std::nullopt;
  return is_enough(*this, *free);
}

std::optional<bool> MemoryForecast::would_fit() const {
  if (!free) return std::nullopt;
  return is_enough(*this, *free + returnable);
}

std::string MemoryForecast::numbers() const {
  const auto in_bytes = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const std::string taken =
      fmt::format("a capture takes {} of the driver and {} for copies", in_bytes(pool + executable), in_bytes(copied));
  return free ? fmt::format("{}, and the driver has {} left", taken, in_bytes(*free)) : taken;
}

std::string MemoryForecast::verdict() const {
  if (!free) return "Whether it fits is not known: free memory is a GPU's, and this step runs on the CPU.";
  if (*fits()) return fmt::format("It fits: {}.", numbers());
  if (!*would_fit()) return fmt::format("It does not fit: {}.", numbers());
  return fmt::format("It does not fit yet: {}. torch.cuda.empty_cache() gives {} back.", numbers(),
                     format_bytes(static_cast<double>(returnable)));
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
