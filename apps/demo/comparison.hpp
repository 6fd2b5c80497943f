#pragma once
#include <apps/demo/char_gpt.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace pianola::demo {

/// Two states, tensor by tensor, by torch.equal: the same bits, no tolerance.
struct Comparison {
  std::size_t tensors = 0;  ///< Compared.
  std::size_t values = 0;   ///< Numbers in them.
  std::size_t unequal = 0;  ///< Tensors that differ.
  std::string first = {};   ///< The first that does, how often and how much; empty: all are equal.
  [[nodiscard]] bool equal() const noexcept { return unequal == 0; }
};

/// @throws pianola::UsageError  The states do not hold the same names.
[[nodiscard]] Comparison compare(const std::vector<NamedTensor>& expected, const std::vector<NamedTensor>& actual);

}  // namespace pianola::demo
