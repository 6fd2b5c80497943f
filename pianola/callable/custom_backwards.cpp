#include <pianola/callable/custom_backwards.hpp>

#include <pianola/trace/op_stream.hpp>

#include <c10/util/Type.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <string>
#include <typeinfo>
#include <utility>

namespace pianola::callable {

namespace autograd = torch::autograd;

// The hooks before and after a node run on one thread, the node's own between them.
struct CustomBackwards::Watched {
  void begin() {
    if (has_begun) return;  // a second backward pass through the same history
    has_begun = true;
    stream = std::make_unique<trace::OpStream>(std::vector<trace::OpObserver*>{&log});
  }

  void end() {
    if (stream == nullptr) return;
    stream.reset();
    is_over = true;
  }

  // Where the node threw, autograd has taken the stream off its thread; what takes it off would meet another thread's.
  ~Watched() { (void)stream.release(); }

  trace::OperationLog log{/*host_numbers=*/false};  // the stream may outlive the pass, on another thread
  std::unique_ptr<trace::OpStream> stream;
  bool has_begun = false;
  bool is_over = false;

  Watched() = default;
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
};

namespace {

template <typename Watched>
class BeforeHook final : public autograd::FunctionPreHook {
 public:
  explicit BeforeHook(std::shared_ptr<Watched> watched) : watched_(std::move(watched)) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    watched_->begin();
    return gradients;
  }

 private:
  std::shared_ptr<Watched> watched_;
};

template <typename Watched>
class AfterHook final : public autograd::FunctionPostHook {
 public:
  explicit AfterHook(std::shared_ptr<Watched> watched) : watched_(std::move(watched)) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list& /*inputs*/) override {
    watched_->end();
    return outputs;
  }

 private:
  std::shared_ptr<Watched> watched_;
};

// Of the history of these results, each once. What lies behind the inputs is others'.
std::vector<autograd::Node*> custom_nodes(std::span<const at::Tensor> inputs, const std::vector<at::Tensor>& results) {
  std::vector<autograd::Node*> open, found;
  ska::flat_hash_set<const autograd::Node*> seen;
  const auto visit = [&](autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& input : inputs) seen.insert(input.grad_fn().get());
  for (const at::Tensor& result : results) visit(result.grad_fn().get());
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (is_custom(*open[i])) found.push_back(open[i]);
    for (const autograd::Edge& edge : open[i]->next_edges()) visit(edge.function.get());
  }
  return found;
}

}  // namespace

bool is_custom(const autograd::Node& node) {
  const std::string type = c10::demangle(typeid(node).name());
  return type.starts_with("torch::autograd::PyNode") || type.starts_with("torch::autograd::CppNode<");
}

CustomBackwards::CustomBackwards(std::span<const at::Tensor> inputs, const std::vector<at::Tensor>& results) {
  for (autograd::Node* node : custom_nodes(inputs, results)) {
    const auto& watched = nodes_.emplace_back(std::make_shared<Watched>());
    node->add_pre_hook(std::make_unique<BeforeHook<Watched>>(watched));
    node->add_post_hook(std::make_unique<AfterHook<Watched>>(watched));
  }
}

std::optional<Diagnosis> CustomBackwards::difference_from(const CustomBackwards& before) const {
  for (std::size_t i = 0; i < std::min(nodes_.size(), before.nodes_.size()); ++i) {
    if (!nodes_[i]->is_over || !before.nodes_[i]->is_over) continue;
    if (auto difference = trace::OperationLog::difference(before.nodes_[i]->log, nodes_[i]->log)) {
      difference->where += (difference->where.empty() ? "" : ", ") + std::string("in a custom function's backward");
      return difference;
    }
  }
  return std::nullopt;
}

}  // namespace pianola::callable
