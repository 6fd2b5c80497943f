#pragma once
#include <pianola/memory/block.hpp>

#include <cstdint>
#include <vector>

namespace pianola::memory {

/// A run of a step: what it was handed out while which operations ran.
struct StepRun {
  std::vector<Block> blocks;              ///< In the order of `made`.
  std::vector<std::int32_t> made_in;      ///< Of each block the last operation that had begun, from 0; -1: none had.
  std::vector<const void*> operations{};  ///< What each was: equal ones are the same operator.
};

}  // namespace pianola::memory
