#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "cuda/scope_rows.hpp"

#include <iterator>
#include <utility>

namespace pianola::bench::cuda {

std::vector<Case> scopes(const Settings& settings) {
  const OnPoolStream stream;
  ScopeRows mlp("mlp", "MLP 16 x 64, batch 32, Adam");
  ScopeRows former("transformer", "transformer 8 x 256, batch 2 x 64, Adam");
  ScopeRows* const models[] = {&mlp, &former};
  std::vector<Case> cases;
  for (ScopeRows* const model : models) cases.push_back(model->wall_time(settings));
  for (ScopeRows* const model : models) cases.push_back(model->host_time(settings));
  // Times come first: a recording leaves CUPTI attached, which slows launches.
  for (ScopeRows* const model : models) {
    std::vector<Case> recorded = model->self_cpu_time(settings);
    std::move(recorded.begin(), recorded.end(), std::back_inserter(cases));
  }
  if (!settings.traces.empty()) {
    for (ScopeRows* const model : models) model->write_traces(settings.traces);
  }
  return cases;
}

}  // namespace pianola::bench::cuda
