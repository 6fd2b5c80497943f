#pragma once
#include <pianola/graph/pool.hpp>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

namespace pianola::graph {

// Note [Memory of a pool that ends]
// The memory of a pool goes back to the device when the last graph and handle are gone, also after a failed capture:
// torch would keep it, and no later pool could use it, until the device is full. What cannot go back yet is tried again
// with each capture that ends and each pool that is made or ends: blocks that the caller still holds (a loss that the
// step had assigned), and pools that end while anybody captures on the device, since torch's allocator frees nothing
// meanwhile.

// Note [Names of pools are used again]
// torch keeps pinned memory by the names of pools, too: 64 lists for each name that was ever captured into, 47 KiB of host
// memory, which go with the whole cache of pinned memory alone. Emptying that cache makes the device wait and takes buffers
// from data loaders. So a new pool takes the name of one that ended, with its lists. Only a name that nobody was told: a
// name that the user holds names that pool for ever, and the cache is emptied once for many of those. And only when the work of the old graphs is done, since the host may
// write the new graph's pinned memory, the old graph's, at once.

// Note [Pools of expandable segments end empty]
// Torch deletes a pool without uses once it has given back as many pieces of memory as it had asked for, and frees a block that is still
// held into what was that pool: the heap is broken. Of expandable segments it counts wrong. One request maps many pages, and each stretch of
// free pages between held blocks counts as a piece when it is unmapped. So such a pool stays in use until nothing of it is held: then each
// segment is one stretch. And before it unmaps pages torch waits for the stream that asked for them alone, where cudaFree waits for all: so
// the pool stays in use until its graphs' replays are over, too, on whatever streams they run. A segment that several requests grew
// is given back as one piece: then torch keeps a record of the pool for ever, 0.4 KiB, without memory, and no new pool can take its name.

/// The pools that ended: gives their memory back to the device as soon as it may go, and keeps their names for new pools.
/// Any thread.
class PoolReturns {
 public:
  static PoolReturns& instance();

  /// While one lives, a capture of Pianola's is open on CUDA, and nothing is tried.
  class Pause {
   public:
    Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
    ~Pause();
  };

  /// While one lives, none of Pianola's captures begins on CUDA: each waits.
  class NoCaptures {
   public:
    /// @param call  "suspend()", for the error.
    /// @throws UsageError  One is open.
    explicit NoCaptures(const char* call);
    NoCaptures(const NoCaptures&) = delete;
    NoCaptures& operator=(const NoCaptures&) = delete;
    ~NoCaptures();
  };

  /// Takes over what is left of a pool whose last user is gone: its use of the pool's device memory, which it releases at once where it
  /// may, the memory that torch still keeps, and the use of its name in the allocator of pinned memory.
  /// @param name_is_free  Nobody was told its name.
  /// @param replayed_on   Where graphs of the pool may still be at work.
  void give_back(c10::DeviceIndex device, PoolId pool, bool name_is_free,
                 const std::vector<c10::cuda::CUDAStream>& replayed_on);
  /// Takes back a name that take_name() gave and no pool was made of.
  void give_name_back(PoolId pool, bool name_is_free);
  /// make_room_for_a_pool(), where none of Pianola's captures is open: others wait meanwhile.
  void make_room(c10::DeviceIndex device);
  /// What torch's allocator holds unused goes back to the driver, for a pool that had no room to resume. Captures wait meanwhile.
  /// @throws OutOfMemoryError  One of Pianola's is open on CUDA.
  void empty_cache_to_resume();
  /// Tries again what could not go back. Call it where no capture is open on this thread.
  void retry();
  /// The name of a pool that is gone, with a use in the allocator of pinned memory that is the caller's now.
  std::optional<PoolId> take_name();

 private:
  struct Ended {
    c10::DeviceIndex device;
    PoolId pool;
    bool is_in_use;  // ours
    bool name_is_free;
    std::vector<at::cuda::CUDAEvent> work;  // of its graphs, when it ended
    /// @return  Whether it could: not where a stream is being captured, or the driver is gone.
    bool note_work(const std::vector<c10::cuda::CUDAStream>& streams) noexcept;
    [[nodiscard]] bool is_idle() const noexcept;
    void wait_for_work() const noexcept;
    /// @return  Whether its device memory is in use no more.
    bool release();
  };
  void add(Ended ended);
  void retry_locked();

  std::mutex mutex_;
  std::condition_variable captures_may_begin_;
  int no_captures_ = 0;  // that live
  int pauses_ = 0;
  int told_names_ = 0;        // of pools that ended since the cache of pinned memory was emptied
  std::vector<Ended> ended_;  // with memory still
  std::vector<Ended> names_;  // whose memory is gone
};

}  // namespace pianola::graph
