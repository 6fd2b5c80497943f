#pragma once
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola::auditing {

/// One thing that a run of a step did with streams and events.
struct StreamUse {
  enum class Kind : std::uint8_t {
    work,    ///< A launch, copy or fill on `stream`.
    record,  ///< `event` was recorded on `stream`.
    wait,    ///< `stream` was told to wait for `event`.
  };
  Kind kind = Kind::work;
  CUstream stream = nullptr;  ///< The legacy default stream is nullptr.
  CUevent event = nullptr;
};

/// What a capture of the run would trip over.
struct StreamHazard {
  enum class Kind : std::uint8_t {
    unjoined,  ///< The step's stream does not wait for this work, the last on its stream.
    unforked,  ///< This work, the first such on its stream, does not wait for the step's stream.
    outside,   ///< This wait is for an event that was recorded before the run, or on a stream that is no part of it.
  };
  Kind kind;
  std::size_t use;  ///< Which of the uses it is.
  CUstream stream;  ///< Of that use.
};

/// The hazards of a run, in the order of their uses. Streams are part of the run as in a capture that begins on `own`:
/// one that waits for an event of a stream that is part of it becomes part of it. Work on the legacy default stream is
/// another rule's and not looked at, and `own` itself needs no order. An event that is recorded and never waited for
/// (those of allocators) changes nothing.
[[nodiscard]] std::vector<StreamHazard> stream_hazards(std::span<const StreamUse> uses, CUstream own);

}  // namespace pianola::auditing
