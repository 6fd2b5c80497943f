#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "trace_case.hpp"

namespace pianola::bench::cuda {

std::vector<Case> trace_overhead(const Settings& settings) {
  const OnPoolStream stream;
  return {trace_case(settings, kDevice, host_timer(synchronize, 10), 200)};
}

}  // namespace pianola::bench::cuda
