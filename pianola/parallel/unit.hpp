#pragma once
#include <pianola/core/byte_span.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pianola::parallel {

/// Whose bytes an access touches: tells, when two units wait for each other, whether they have to by meaning.
enum class Memory : std::uint8_t {
  outside,    ///< From before the step: inputs, parameters, state.
  made,       ///< Made by the step: another tensor may have had the same bytes before.
  workspace,  ///< cuBLAS's scratch, which operations share without a word.
  generator,  ///< Seed and offset of a random generator.
  order,      ///< None: stands for the one order of a rank's collectives.
};

/// Bytes that a unit reads, or reads and writes.
struct Access {
  ByteSpan bytes;
  bool write = false;
  Memory memory = Memory::made;
  const void* owner = nullptr;  ///< Identity of the storage; tells reuse of memory from a second write to one tensor.
};

/// A piece of a step that is ordered as a whole: an operation, or one kernel of an operation that works on lists. Its
/// nodes run one after the other. Units are held in the order in which they were captured.
struct Unit {
  static constexpr std::size_t kNoOp = SIZE_MAX;

  std::string name;                   ///< "aten::mm"; "nodes outside any operation".
  std::size_t op = kNoOp;             ///< Position in OpTrace::ops().
  std::vector<std::uint32_t> nodes;   ///< Positions in GraphTopology::nodes(), in order; on the tape, of operations.
  std::vector<Access> accesses = {};  ///< Empty spans do not occur.
  std::string barrier = {};           ///< Why it is ordered against everything; empty: it is not.
  bool writes_unknown = false;        ///< It may write what `accesses` does not tell; then it is a barrier, too, or
                                      ///< ordered among its like.
  bool communicates = false;          ///< A collective, which runs on a lane of its own.
  double cost_us = 0;                 ///< Modelled time on the device.
};

}  // namespace pianola::parallel
