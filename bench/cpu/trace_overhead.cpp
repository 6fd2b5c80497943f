#include "benchmark.hpp"
#include "cpu/one_thread.hpp"
#include "trace_case.hpp"

namespace pianola::bench::cpu {

std::vector<Case> trace_overhead(const Settings& settings) {
  const OneThread one_thread;
  return {trace_case(settings, c10::kCPU, host_timer(), 200)};
}

}  // namespace pianola::bench::cpu
