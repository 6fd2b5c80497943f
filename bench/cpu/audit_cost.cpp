#include "audit_case.hpp"
#include "benchmark.hpp"
#include "cpu/one_thread.hpp"

namespace pianola::bench::cpu {

std::vector<Case> audit_cost(const Settings& settings) {
  const OneThread one_thread;
  return audit_cases(settings, c10::kCPU, host_timer(), 20);
}

std::vector<Case> verify_cost(const Settings& settings) {
  const OneThread one_thread;
  return {verify_case(settings, c10::kCPU, [] {})};
}

}  // namespace pianola::bench::cpu
