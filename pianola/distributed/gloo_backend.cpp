#define USE_C10D_GLOO  // as torch is built: its header is empty without
#include <pianola/distributed/backends.hpp>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>  // see Note [Gloo's names]

namespace pianola::distributed {

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendPlan& plan) {
  auto options = c10d::ProcessGroupGloo::Options::create_default(plan.timeout);
  options->group_name = plan.group;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(plan.store, plan.rank, plan.size, std::move(options));
}

}  // namespace pianola::distributed
