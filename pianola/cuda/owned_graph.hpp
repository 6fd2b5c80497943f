#pragma once
#include <pianola/cuda/driver.hpp>

#include <memory>
#include <type_traits>

namespace pianola {

struct GraphDestroyer {
  void operator()(CUgraph graph) const noexcept { (void)Driver::get().graph_destroy(graph); }
};
/// A graph (CUgraph) that is destroyed with this.
using OwnedGraph = std::unique_ptr<std::remove_pointer_t<CUgraph>, GraphDestroyer>;

}  // namespace pianola
