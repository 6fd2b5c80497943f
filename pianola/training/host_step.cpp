#include <pianola/training/host_step.hpp>

#include <pianola/callable/host_parts.hpp>
#include <pianola/core/error.hpp>

#include <algorithm>

namespace pianola {
namespace {

// Whose graph holds its operations.
c10::Device device_of(const std::vector<at::Tensor>& parameters) {
  const auto on_gpu =
      std::find_if(parameters.begin(), parameters.end(), [](const at::Tensor& one) { return !one.is_cpu(); });
  return on_gpu == parameters.end() ? c10::Device(c10::kCPU) : on_gpu->device();
}

// Ends also where the part throws.
class OpenPart {
 public:
  OpenPart(callable::HostParts& parts, const HostStep& step)
      : parts_(parts),
        depth_(parts.begin(device_of(step.parameters),
                           {.run = step.run, .parameters = step.parameters, .save = step.save})) {}
  OpenPart(const OpenPart&) = delete;
  OpenPart& operator=(const OpenPart&) = delete;
  ~OpenPart() { parts_.end(depth_); }

 private:
  callable::HostParts& parts_;
  int depth_;
};

}  // namespace

void host_step(HostStep step) {
  if (!step.run) throw UsageError({.what = "HostStep::run is empty", .fix = "give it the part of the step"});
  callable::HostParts* const parts = callable::HostParts::current();
  if (parts == nullptr) return step.run();
  const OpenPart open(*parts, step);
  step.run();
}

void step(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  host_step({.run = [&optimizer] { optimizer.step(); },
             .parameters = std::move(parameters),
             .save = [&optimizer] { return training::saved_state(optimizer); }});
}

namespace training {

// Tensors of the state are the same afterwards: what they hold is the capture's affair.
PutBack saved_state(torch::optim::Optimizer& optimizer) {
  using State = std::remove_reference_t<decltype(optimizer.state())>;
  const auto state = std::make_shared<State>();
  for (const auto& [parameter, one] : optimizer.state()) state->emplace(parameter, one->clone());
  const auto groups = std::make_shared<std::vector<torch::optim::OptimizerParamGroup>>(optimizer.param_groups());
  return [&optimizer, state, groups] {
    optimizer.state().clear();
    for (const auto& [parameter, one] : *state) optimizer.state().emplace(parameter, one->clone());
    for (std::size_t i = 0; i < groups->size(); ++i) {
      if ((*groups)[i].has_options()) optimizer.param_groups()[i].set_options((*groups)[i].options().clone());
    }
  };
}

}  // namespace training
}  // namespace pianola
