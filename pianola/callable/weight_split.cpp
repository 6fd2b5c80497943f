#include <pianola/callable/weight_split.hpp>

#include <pianola/callable/product_nodes.hpp>
#include <pianola/core/error.hpp>
#include <pianola/torch_abi/autograd_node.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace pianola::callable {

namespace autograd = torch::autograd;

namespace {

// The leaf that an edge leads to through layouts alone; undefined where it leads elsewhere.
at::Tensor leaf_behind(const autograd::Edge& edge) {
  const autograd::Node* node = edge.function.get();
  while (node != nullptr) {
    if (const auto* leaf = dynamic_cast<const autograd::AccumulateGrad*>(node)) return leaf->variable;
    if (node->num_outputs() != 1 || !is_layout_change(*node)) break;
    node = node->next_edge(0).function.get();
  }
  return {};
}

struct Candidate {
  torch_abi::NodeRef<> product;
  std::size_t edge;
  at::Tensor weight;
};

// All nodes of a history, and in it all edges from a product to a leaf that may be its weight.
class History {
 public:
  History(const std::vector<at::Tensor>& outputs, const WeightSplit::Leaves& may_wait, std::uint64_t began) {
    std::vector<torch_abi::NodeRef<>> open;
    for (const at::Tensor& output : outputs) {
      if (output.requires_grad()) open.push_back(autograd::impl::gradient_edge(output).function);
    }
    while (!open.empty()) {
      const torch_abi::NodeRef<> node = std::move(open.back());
      open.pop_back();
      if (!node || !seen_.insert(node.get()).second) continue;
      // A hook sees the gradients of all edges at once.
      const bool is_product = node->sequence_nr() >= began && node->num_inputs() == 1 && node->post_hooks().empty() &&
                              is_divisible_product(*node);
      for (std::size_t i = 0; i < node->num_outputs(); ++i) {
        at::Tensor weight = is_product ? leaf_behind(node->next_edge(i)) : at::Tensor();
        if (weight.defined() && may_wait.count(weight.unsafeGetTensorImpl()) != 0) {
          candidates_.push_back({.product = node, .edge = i, .weight = std::move(weight)});
        } else {
          open.push_back(node->next_edge(i).function);
        }
      }
    }
  }

  /// Those whose leaf nothing else of the history reads.
  [[nodiscard]] std::vector<Candidate> weights() const {
    std::vector<Candidate> result;
    for (const Candidate& one : candidates_) {
      if (seen_.count(autograd::impl::gradient_edge(one.weight).function.get()) == 0) result.push_back(one);
    }
    return result;
  }

 private:
  ska::flat_hash_set<const autograd::Node*> seen_;
  std::vector<Candidate> candidates_;
};

// Keeps what flows into a node, as its other hooks have left it.
struct Noted {
  at::Tensor gradient;
  std::int64_t version = 0;
};

class Note final : public autograd::FunctionPreHook {
 public:
  explicit Note(Noted& noted) : noted_(noted) {}

  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    noted_.gradient = gradients.front();
    if (noted_.gradient.defined()) noted_.version = noted_.gradient._version();
    return gradients;
  }

 private:
  Noted& noted_;
};

}  // namespace

struct WeightSplit::Product {
  explicit Product(torch_abi::NodeRef<> node_) : node(std::move(node_)) {
    node->add_pre_hook(std::make_unique<Note>(noted));
  }

  // Past set_next_edge(), which wants no parents yet: what a node can reach only shrinks.
  void take_out(std::size_t edge) { to_weights.emplace_back(edge, std::exchange(node->next_edges()[edge], {})); }

  void check_unwritten() const {
    if (noted.gradient._version() == noted.version) return;
    throw UnsupportedError(
        {.what = "the backward pass writes a gradient in place that the gradients of weights need later",
         .fix = "leave delay_weight_gradients off, or let the function that does so work on a clone()"});
  }

  // The history is of no use afterwards.
  void leave_weights_alone() {
    for (autograd::Edge& edge : node->next_edges()) edge = {};
    for (auto& [i, edge] : to_weights) node->next_edges()[i] = std::move(edge);
    node->pre_hooks().clear();
    node->tensor_pre_hooks().clear();  // what was noted has passed them
    node->retains_grad_hooks().clear();
  }

  torch_abi::NodeRef<> node;
  std::vector<std::pair<std::size_t, autograd::Edge>> to_weights;
  Noted noted;
};

WeightSplit::WeightSplit(const std::vector<at::Tensor>& outputs, const Leaves& may_wait, std::uint64_t began) {
  ska::flat_hash_map<const autograd::Node*, Product*> known;
  Leaves listed;
  for (const Candidate& one : History(outputs, may_wait, began).weights()) {
    Product*& product = known[one.product.get()];
    if (product == nullptr) {
      product = products_.emplace_back(std::make_unique<Product>(one.product)).get();
    }
    product->take_out(one.edge);
    if (listed.insert(one.weight.unsafeGetTensorImpl()).second) weights_.push_back(one.weight);
  }
}

// Hooks of nodes that live on must not look at what goes.
WeightSplit::~WeightSplit() {
  for (const auto& product : products_) product->node->pre_hooks().clear();
}

void WeightSplit::set_apart(const std::vector<at::Tensor>& others) {
  const at::AutoGradMode no_grad(false);
  for (const auto& product : products_) {
    at::Tensor& gradient = product->noted.gradient;
    const bool shared = gradient.defined() && std::any_of(others.begin(), others.end(), [&](const at::Tensor& other) {
                          return trace::storage_of(other) == trace::storage_of(gradient);
                        });
    if (!shared) continue;
    product->check_unwritten();
    gradient = gradient.clone();
    product->noted.version = gradient._version();
  }
}

void WeightSplit::run(bool retain) {
  autograd::edge_list roots;
  autograd::variable_list gradients;
  for (const auto& product : products_) {
    product->leave_weights_alone();
    if (!product->noted.gradient.defined()) continue;  // nothing flowed into it
    product->check_unwritten();
    roots.emplace_back(product->node, 0);
    gradients.push_back(product->noted.gradient);
  }
  if (roots.empty()) return;
  autograd::Engine::get_default_engine().execute(roots, gradients, retain, /*create_graph=*/false,
                                                 /*accumulate_grad=*/true);
}

}  // namespace pianola::callable
