#pragma once
#include <pianola/trace/block_log.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pianola::graph {

/// Their lives alone.
[[nodiscard]] std::vector<memory::Block> lives_of(const std::vector<trace::StepBlock>& blocks);

/// Before a recording: that a pool with these blocks keeps to the limit, as torch's allocator lays them or a plan does.
/// @param blocks  Of a run before; nullopt: it could not be watched.
/// @param limit   0: none.
/// @throws OutOfMemoryError  The pool would take more.
/// @throws UnsupportedError  The blocks are wanted, and nobody knows them.
void check_memory(const std::optional<std::vector<memory::Block>>& blocks, std::size_t limit, bool plan_memory);

}  // namespace pianola::graph
