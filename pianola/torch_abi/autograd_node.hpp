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

/// A reference to none.
inline WeakNodeRef no_node() { return WeakNodeRef(NodeRef<>()); }

}  // namespace pianola::torch_abi
