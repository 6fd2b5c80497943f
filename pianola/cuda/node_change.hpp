#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/graph_node.hpp>
#include <pianola/cuda/node_reader.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace pianola {

// Note [Kernels with other numbers]
// What a kernel is given lies in a block of arguments whose meaning only its library knows. To give a captured kernel
// another number, the same work is captured once more with that number, and the new node's block is put into the executable
// in place of the old one. Both captures were given the same tensors, but results the second one allocated anew: a word that
// addresses one of these stays as it was captured. Bytes of a block that nobody filled hold what was on the stack, so that words
// cannot be told apart by their looks: where one may address scratch memory that the second capture allocated, nothing is
// changed, and the work is left to be done anew.

/// A result of an operation that is captured once more.
struct MovedResult {
  std::uint64_t captured;  ///< Where it was.
  std::uint64_t anew;
  std::size_t bytes;
};

/// What an operation allocated that is captured once more.
struct MemoryAnew {
  std::vector<MovedResult> results = {};
  std::vector<ByteSpan> all = {};
};

/// Whether a node may launch another function than it was captured with, as element by element work does for other alignments.
/// Not where a launch has attributes (clusters, cooperation): these stay as they were captured.
enum class OtherFunctions : bool { refused, allowed };

/// What a node of an executable is given in place of what it was captured with: a kernel's block of arguments, the addresses
/// of a copy, the address and the value of a fill.
class NodeChange {
 public:
  /// @param captured  The node as it was captured.
  /// @param anew      The node of the same work with other numbers; need not live longer than this call.
  /// @param memory    What the same work allocated.
  /// @return          Nothing where no change of parameters makes one of the other for certain: they are of other types, launch
  ///                  other functions where `others` says so, or an argument may be an address of scratch memory.
  /// @throws DeviceError  CUDA does not tell what the nodes are.
  [[nodiscard]] static std::optional<NodeChange> between(const GraphNode& captured, CUgraphNode anew,
                                                         NodeReader& reader, const MemoryAnew& memory = {},
                                                         const Driver& driver = Driver::get(),
                                                         OtherFunctions others = OtherFunctions::refused);

  /// From its next launch on. @param node  Of the graph that `executable` was made from.
  /// @throws DeviceError  CUDA refuses; the executable is as it was.
  void apply(CUgraphExec executable, CUgraphNode node, const Driver& driver = Driver::get());

  /// Whether the node does the same but for its words.
  [[nodiscard]] bool does_as(const NodeChange& other) const noexcept;
  /// What it is given, as words of 8 bytes, where addresses are aligned: the block of a kernel, both addresses of a copy, that of
  /// a fill.
  [[nodiscard]] std::size_t words() const noexcept;
  [[nodiscard]] std::uint64_t word(std::size_t index) const noexcept;
  void set_word(std::size_t index, std::uint64_t value) noexcept;

 private:
  [[nodiscard]] static std::optional<NodeChange> of_copies(const GraphNode& captured, const MemcpyNode& anew,
                                                           const MemoryAnew& memory, const Driver& driver);
  [[nodiscard]] static std::optional<NodeChange> of_fills(const GraphNode& captured, const MemsetNode& anew,
                                                          const MemoryAnew& memory, const Driver& driver);

  CUDA_KERNEL_NODE_PARAMS_v2 kernel_ = {};  // without a function, a copy and a fill: nothing is to be changed
  std::vector<std::byte> arguments_;
  std::vector<void*> pointers_;  // to each argument
  std::optional<CUDA_MEMCPY3D_v2> copy_;
  std::optional<CUDA_MEMSET_NODE_PARAMS_v1> fill_;
};

}  // namespace pianola
