#include "audit_case.hpp"
#include "benchmark.hpp"
#include "cuda/device.hpp"

namespace pianola::bench::cuda {

std::vector<Case> audit_cost(const Settings& settings) {
  const OnPoolStream stream;
  return audit_cases(settings, kDevice, host_timer(synchronize, 10), 20);
}

std::vector<Case> verify_cost(const Settings& settings) {
  const OnPoolStream stream;
  return {verify_case(settings, kDevice, synchronize)};
}

}  // namespace pianola::bench::cuda
