#pragma once
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

namespace pianola::testing {

/// A tensor of make()'s whose storage has the address that the freed one's had: calls until one has, and holds the others
/// meanwhile. Where that address is not given out, the last of many.
template <typename Make>
at::Tensor made_in_place_of(const void* freed, const Make& make) {
  constexpr int kTries = 64;
  std::vector<at::Tensor> others;
  while (others.size() < kTries) {
    at::Tensor made = make();
    if (trace::storage_of(made) == freed) return made;
    others.push_back(std::move(made));
  }
  return others.back();
}

/// Whether the address of a freed storage is given to another one at all. It is not under sanitizers, where what nobody
/// keeps from being reused cannot be told from what is kept.
inline bool identities_are_reused() {
  const auto make = [] { return at::empty({1}); };
  const void* const freed = trace::storage_of(make());
  return trace::storage_of(made_in_place_of(freed, make)) == freed;
}

}  // namespace pianola::testing
