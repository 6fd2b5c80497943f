#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/graph/cuda/mapped_segments.hpp>
#include <pianola/memory/piece.hpp>
#include <pianola/memory/region_space.hpp>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pianola::graph {

// Note [One region for the graphs of a pool]
// Graphs of a pool never run at once, so their plans may lay blocks in the same bytes: all but those that a block of an earlier capture
// still has, at the least (Note [What a capture keeps clear of] in pool_clearance.hpp). A later plan may need more than the earlier ones,
// and their addresses cannot change. So the region begins where as many addresses are reserved as the device has bytes, and grows behind
// its end: by a segment of the pool that torch is asked for, whole, and that Pianola's segments (mapped_segments) put there. Torch counts
// it, shows it in its snapshots and gives it back, as any other. What plans do not foresee torch takes from other segments, which lie
// elsewhere. Where the region cannot grow, a capture has one of its own, a block of torch's, as in a pool that shares none.
// Results that are to survive replays of earlier graphs lie in a second region: see Note [Results apart from scratch] in
// memory/apart_plan.hpp. At its end each recording notes what is held still.

/// Memory in which plans lay blocks: of one recording, or of all that a pool's graphs plan.
class PlannedRegion {
 public:
  /// Of one recording, in a block of torch's.
  PlannedRegion(c10::DataPtr memory, std::size_t bytes);
  /// Of a pool, empty at first.
  explicit PlannedRegion(c10::Device device);
  PlannedRegion(const PlannedRegion&) = delete;
  PlannedRegion& operator=(const PlannedRegion&) = delete;
  ~PlannedRegion();

  /// To so many bytes at least. Nobody else grows it meanwhile, and what the current stream asks of torch's allocator goes to the pool.
  /// @return  Whether it could; nothing has changed if not. @throws c10::OutOfMemoryError  As little has.
  bool grow_to(std::uint64_t bytes);
  /// Keeps what of these bytes no block has from plans, while the result lives.
  static std::shared_ptr<void> reserve(const std::shared_ptr<PlannedRegion>& region, std::span<const ByteSpan> used);

  [[nodiscard]] bool is_shared() const noexcept { return is_shared_; }
  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  [[nodiscard]] std::uint64_t bytes() const;
  /// What some plans keep clear of besides; see Note [What a capture keeps clear of] in pool_clearance.hpp.
  struct Besides {
    bool and_left = false;                    ///< By recordings.
    std::span<const ByteSpan> and_used = {};  ///< Of which some may lie elsewhere.
  };
  /// What blocks have, of whichever capture, what is kept whole, and this; no two have a byte in common.
  [[nodiscard]] std::vector<memory::Piece> taken(Besides besides) const;
  [[nodiscard]] std::vector<memory::Piece> taken() const { return taken({.and_left = false, .and_used = {}}); }
  /// What a recording has left, in place of what was noted before.
  void note_left(std::uint64_t recording, std::span<const ByteSpan> left);
  /// What a recording was handed out is kept whole.
  void keep_whole(std::uint64_t recording, std::span<const ByteSpan> allocated);
  /// The recording is gone: nothing is kept for it.
  void forget(std::uint64_t recording);
  /// Its memory is not used again before the present work of this stream is done, once it is freed.
  void record_stream(c10::cuda::CUDAStream stream) const;

  /// Of all regions, and of who has which block.
  static std::mutex& mutex();
  /// Under it, as all that follows.
  [[nodiscard]] std::uintptr_t begin() const noexcept { return begin_; }
  [[nodiscard]] memory::RegionSpace& space() noexcept { return space_; }
  /// The blocks of torch's that these bytes lie in.
  [[nodiscard]] std::vector<const c10::DataPtr*> memory_of(const ByteSpan& span) const;

  /// What is held of the region's block of torch's that lies there; nullopt: none does.
  static std::optional<std::vector<ByteSpan>> held_in(const ByteSpan& span);
  /// What no block holds of any region, each in one block of torch's.
  static std::vector<std::pair<c10::Device, ByteSpan>> gaps();

 private:
  struct Segment {
    c10::DataPtr memory;
    ByteSpan span;
  };
  using PiecesOfRecordings = std::unordered_map<std::uint64_t, std::vector<memory::Piece>>;
  class Reservation;
  class All;
  [[nodiscard]] std::optional<Segment> ask_for(std::size_t bytes);
  [[nodiscard]] std::vector<memory::Piece> pieces_of(std::span<const ByteSpan> spans) const;

  c10::Device device_;
  bool is_shared_;
  SegmentRange range_;  // changed by grow_to() alone
  std::uintptr_t begin_ = 0;
  std::deque<Segment> segments_;  // behind each other; others point to their blocks
  memory::RegionSpace space_;
  PiecesOfRecordings left_, whole_;  // by recording
};

}  // namespace pianola::graph
