#pragma once
#include <pianola/trace/block_log.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pianola::graph {

/// What a pool takes that torch's allocator fills with these blocks.
[[nodiscard]] std::uint64_t pool_bytes(const std::vector<trace::StepBlock>& blocks);

/// Before a recording. @param pool  As a run before showed it; nullopt: it could not be watched.
/// @throws OutOfMemoryError  The pool would take more than the limit.
/// @throws UnsupportedError  Nobody knows.
void check_memory_limit(std::optional<std::uint64_t> pool, std::size_t limit);

}  // namespace pianola::graph
