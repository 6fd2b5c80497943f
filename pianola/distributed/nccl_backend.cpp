#define USE_C10D_NCCL  // as torch is built: its header is empty without
#include <pianola/distributed/backends.hpp>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace pianola::distributed {

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendPlan& plan) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = plan.timeout;
  options->group_name = plan.group;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(plan.store, plan.rank, plan.size, std::move(options));
}

}  // namespace pianola::distributed
