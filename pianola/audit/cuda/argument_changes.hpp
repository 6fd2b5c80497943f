#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/cuda/graph_node.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace pianola::auditing {

/// A kernel of a captured step.
struct CapturedKernel {
  KernelNode node;
  /// Index + 1 of the operation that launched it, or behind which it was launched; 0: before the first.
  std::size_t operation = 0;
  bool inside = false;  ///< The operation launched it.
  bool atens = false;   ///< Its arguments are ATen's doing: not looked at.
};

/// The kernels of a captured step, in the order of their launches.
struct CapturedStep {
  std::vector<std::string> operations;  ///< Names, in order.
  std::vector<CapturedKernel> kernels;
  std::vector<ByteSpan> pool;  ///< Memory of the graph's own.
};

/// A part of a kernel's arguments that was not the same in three captures.
struct ArgumentChange {
  std::size_t kernel = 0;                          ///< Position in CapturedStep::kernels of the third capture.
  std::size_t parameter = 0;                       ///< Index.
  std::size_t size = 0;                            ///< Of the part: 1, 2, 4 or 8 bytes.
  std::uint64_t first = 0, second = 0, third = 0;  ///< Its bytes in each, as a number.
  bool address = false;                            ///< It points to memory of CUDA.

  /// It differed between the two captures of one state already.
  [[nodiscard]] bool by_the_step() const noexcept { return first != second; }
};

/// Compares two captures from the same state of the host with a third; see Note [Arguments that change].
/// @param is_address  Whether a number is the address of memory that CUDA knows. Asked only about what differs.
/// @return            Nothing where the operations of the captures are not the same; kernels of an operation are
/// compared
///                    where they are the same functions in the same order.
[[nodiscard]] std::vector<ArgumentChange> argument_changes(const CapturedStep& first, const CapturedStep& second,
                                                           const CapturedStep& third,
                                                           const std::function<bool(std::uintptr_t)>& is_address);

/// "0.5 -> 0.25 (as integers 1056964608 -> 1048576000)", "3 -> 4".
[[nodiscard]] std::string in_words(const ArgumentChange& change);

}  // namespace pianola::auditing
