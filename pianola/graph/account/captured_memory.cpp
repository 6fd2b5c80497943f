#include <pianola/graph/account/captured_memory.hpp>

namespace pianola {

Report CapturedMemory::report() const {
  Report report("Memory, told before and measured");
  report.fact("told_bytes", "pool, told before", forecast.pool, "bytes")
      .fact("pool_bytes", "pool", graph.pool.bytes, "bytes")
      .fact("told_executable_bytes", "executable, told before", forecast.executable, "bytes")
      .fact("executable_bytes", "executable", graph.executable.device, "bytes");
  report.section("forecast", forecast.report());
  report.section("graph", graph.report());
  report.section("process", process.report());
  return report;
}

}  // namespace pianola
