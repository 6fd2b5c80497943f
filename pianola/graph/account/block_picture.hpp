#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/graph/account/memory_user.hpp>
#include <pianola/memory/block.hpp>
#include <pianola/memory/show/picture.hpp>
#include <pianola/trace/block_log.hpp>
#include <pianola/trace/op_trace.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::graph {

/// Who had the blocks of a run, and when most was in use. Bytes in whole units of 512.
struct BlockPicture {
  std::uint64_t handed_out = 0;      ///< Bytes of all blocks.
  std::uint64_t at_most = 0;         ///< In use at a time.
  std::uint64_t left = 0;            ///< In use when the run was over.
  std::string peak_place;            ///< The operation in which most was in use.
  std::vector<MemoryUser> at_peak;   ///< The largest first.
  std::vector<memory::Block> lives;  ///< Of each block.
  memory::Picture picture;           ///< Its blocks and owners; their places are the caller's to fill in.
};

/// @param trace  Of the run, with call sites.
[[nodiscard]] BlockPicture picture_of(const std::vector<trace::StepBlock>& blocks, const OpTrace& trace);
/// The same of the blocks that lie in a pool, where they lie in it. @param segments  Of the pool, in the order of addresses.
[[nodiscard]] BlockPicture picture_in(const std::vector<ByteSpan>& segments, std::vector<trace::StepBlock> blocks,
                                      const OpTrace& trace);

}  // namespace pianola::graph
