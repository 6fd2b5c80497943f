#pragma once
#include <ATen/core/Generator.h>

#include <vector>

namespace pianola::graph {

/// The generators that the capture which is open on this thread knows, its warm-up included; nullptr: none is open.
inline const std::vector<at::Generator>*& open_generators() {
  thread_local const std::vector<at::Generator>* generators = nullptr;
  return generators;
}

}  // namespace pianola::graph
