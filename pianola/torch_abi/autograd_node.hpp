#pragma once
#include <pianola/torch_abi/torch_version.hpp>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>

namespace pianola::torch_abi {

// How torch holds the nodes of autograd: by std::shared_ptr up to 2.12, by c10::intrusive_ptr since 2.13.
#if PIANOLA_TORCH_AT_LEAST(2, 13)
template <typename Node = torch::autograd::Node>
using NodeRef = c10::intrusive_ptr<Node>;
using WeakNodeRef = c10::weak_intrusive_ptr<torch::autograd::Node>;
#else
template <typename Node = torch::autograd::Node>
using NodeRef = std::shared_ptr<Node>;
using WeakNodeRef = std::weak_ptr<torch::autograd::Node>;
#endif

/// A node that torch may hold.
template <typename Node, typename... Arguments>
NodeRef<Node> make_node(Arguments&&... arguments) {
#if PIANOLA_TORCH_AT_LEAST(2, 13)
  return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
#else
  return NodeRef<Node>(new Node(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode);
#endif
}

/// A node of ours. It lets go of what it holds when nobody refers to it any more: since 2.13 its destructor waits for weak references,
/// too, and what it holds may hold one.
class OwnNode : public torch::autograd::Node {
#if PIANOLA_TORCH_AT_LEAST(2, 13)
 public:
  void release_resources() override {
    let_go();
    Node::release_resources();
  }
#endif

 protected:
  /// Also called by the destructor of the class that has it, which comes later or instead.
  virtual void let_go() noexcept = 0;
};

/// A reference to none.
inline WeakNodeRef no_node() { return WeakNodeRef(NodeRef<>()); }

}  // namespace pianola::torch_abi
