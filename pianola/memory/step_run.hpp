#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/block.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace pianola::memory {

/// A run of a step: what it was handed out while which operations ran.
struct StepRun {
  std::vector<Block> blocks;            ///< In the order of `made`.
  std::vector<std::int32_t> made_in;    ///< Of each block the last operation that had begun, from 0; -1: none had.
  std::vector<std::uintptr_t> streams;  ///< Of each block, that asked for it.
  std::vector<const void*> operations;  ///< What each was: equal ones are the same operator.
};

/// The blocks of the stream that asked for the most bytes, and all others.
[[nodiscard]] PIANOLA_API std::pair<StepRun, StepRun> by_main_stream(const StepRun& run);

}  // namespace pianola::memory
