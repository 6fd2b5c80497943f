#include <pianola/graph/island_call.hpp>

#include <pianola/core/error.hpp>
#include <pianola/torch_abi/autograd_node.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace pianola::graph {

namespace autograd = torch::autograd;

namespace {

class IslandNode final : public torch_abi::OwnNode {
 public:
  explicit IslandNode(c10::intrusive_ptr<Island> island) : island_(std::move(island)) {}
  ~IslandNode() override { let_go(); }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (island_ == nullptr) {
      throw UsageError({.what = "backward() was called a second time through a part that stays eager",
                        .fix = "call it with retain_graph=True before"});
    }
    if (at::GradMode::is_enabled()) {
      refuse_island(island_->function(), "is differentiated twice: backward() was called with create_graph=True",
                    "leave create_graph out, or the whole step eager");
    }
    std::vector<at::Tensor> given;
    std::vector<std::int64_t> of;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      given.push_back(gradients[i]);
      of.push_back(static_cast<std::int64_t>(i));
    }
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(kIslandBackward, "")
                               .typed<std::vector<at::Tensor>(std::vector<at::Tensor>, std::vector<std::int64_t>, bool,
                                                              std::int64_t, const c10::intrusive_ptr<Island>&)>();
    std::vector<at::Tensor> made;
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      made = op.call(given, of, autograd::get_current_graph_task_keep_graph(), island_->function().number, island_);
    }
    autograd::variable_list all;
    std::size_t next = 0;
    for (const bool defined : island_->gradients_defined()) {
      all.push_back(defined ? made.at(next++) : at::Tensor());
    }
    return all;
  }
  void release_variables() override { island_.reset(); }
  std::string name() const override { return "PianolaIslandBackward"; }

 private:
  void let_go() noexcept override { island_.reset(); }
  c10::intrusive_ptr<Island> island_;
};

}  // namespace

std::vector<at::Tensor> Island::connect(std::vector<at::Tensor> results, const std::vector<at::Tensor>& inputs) {
  const std::vector<IslandSample>& samples = notes().results;
  const bool any =
      std::any_of(samples.begin(), samples.end(), [](const IslandSample& one) { return one.requires_grad; });
  if (!any) return results;
  std::vector<at::Tensor> all = inputs;
  for (const trace::WeakTensor& parameter : notes().parameters) {
    auto held = parameter.lock();
    all.push_back(held ? at::Tensor(std::move(held)) : at::Tensor());
  }
  autograd::edge_list edges;
  for (const std::size_t use : notes().uses) {
    edges.push_back(all[use].defined() ? autograd::impl::gradient_edge(all[use]) : autograd::Edge());
  }
  const auto node = torch_abi::make_node<IslandNode>(c10::intrusive_ptr<Island>::reclaim_copy(this));
  node->set_next_edges(std::move(edges));
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::uint32_t number = node->add_input_metadata(results[i]);
    if (samples[i].requires_grad) autograd::impl::set_gradient_edge(results[i], {node, number});
  }
  return results;
}

}  // namespace pianola::graph
