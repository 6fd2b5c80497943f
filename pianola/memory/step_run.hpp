#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/block.hpp>
#include <pianola/memory/interference.hpp>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace pianola::memory {

/// A run of a step: what it was handed out while which operations ran.
struct StepRun {
  std::vector<Block> blocks;            ///< In the order of `made`.
  std::vector<std::int32_t> made_in;    ///< Of each block the last operation that had begun, from 0; -1: none had.
  std::vector<std::uintptr_t> streams;  ///< Of each block, that asked for it.
  std::vector<const void*> operations;  ///< What each was: equal ones are the same operator.
  std::optional<std::uintptr_t> main =
      {};  ///< The stream that the step's thread asked for the most bytes on; nullopt: it asked for none.
  Interference interference = {};  ///< Of the blocks, where parallel lanes run the step; none where its order does.
};

/// The blocks of the step's stream, and all others: other streams', also those of other threads, which may have more.
/// @param captured  It is that stream, where the run has blocks of it; else the run's main one is, or the one with the most bytes.
[[nodiscard]] PIANOLA_API std::pair<StepRun, StepRun> by_main_stream(
    const StepRun& run, std::optional<std::uintptr_t> captured = std::nullopt);

/// Notes in a run what was found to interfere on its main stream.
/// @param of_main  The first of by_main_stream(), of this run: with interference.
PIANOLA_API void keep_apart_on_main_stream(StepRun& run, const StepRun& of_main);

}  // namespace pianola::memory
