#pragma once
#include <pianola/cuda/executable.hpp>
#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/cuda/generator_clock.hpp>
#include <pianola/graph/cuda/ledger_entry.hpp>
#include <pianola/graph/cuda/shared_executable.hpp>
#include <pianola/graph/cuda/watched_replays.hpp>
#include <pianola/graph/pool_turn.hpp>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pianola::graph {

/// Launches the executables of one graph: in the turn of its pool, where nobody has overwritten what it reads of other graphs, and
/// with the numbers that its generators stand at. Streams are the current one of its device.
class Launcher {
 public:
  explicit Launcher(c10::Device device) : device_(device) {}

  /// Where a part of a replay lies in it; by itself, all of it.
  struct Piece {
    bool is_first = true;
    bool is_last = true;
  };
  /// @param executable  nullptr: it is the turn of operations that are run by hand.
  /// @throws UsageError, ReplayError, CommunicationError, DeviceError  Nothing was launched.
  void launch(CudaPool& pool, const Executable* executable, Piece piece);
  /// The same of a whole graph, with an executable that others use, too.
  /// @param as    That has to have its parameters; else it is taken.
  /// @param take  Called in the turn, before the launch on that stream. @return  What to launch: that one, or another.
  using Take = c10::function_ref<const Executable&(const PoolTurn& turn, CUstream stream)>;
  void launch_shared(CudaPool& pool, const SharedExecutable& shared, const void* as, Take take);
  /// Before copies into memory that the last replay may be reading still. @throws UsageError  As launch().
  void order_behind_replays(CudaPool& pool);
  /// Holds a trial launch, which leaves the generators' numbers on the device moved on, and the host's as they were.
  /// @param try_it  Launches on the current stream.
  bool hold_trial(CudaPool& pool, c10::function_ref<bool()> try_it);

  [[nodiscard]] LedgerEntry& entry() noexcept { return entry_; }
  [[nodiscard]] const LedgerEntry& entry() const noexcept { return entry_; }

  /// The capture has ended, and draws from these.
  void draw_from(GeneratorClock clock, const GeneratorClock::Drawable& drawable);
  [[nodiscard]] bool draws_random_numbers() const noexcept { return !clock_.idle(); }
  /// Changes when anybody draws from the generators that the graph draws from.
  [[nodiscard]] std::uint64_t place_of_generators() const;

  /// See Backend::watch_replays().
  void watch(const std::vector<std::string>& groups, const std::string& collectives) {
    watched_ = std::make_unique<WatchedReplays>(device_, groups, collectives);
  }

  /// Nothing is launched any more: nobody draws, and nobody waits for a replay.
  void stop() noexcept;
  /// That the graph was launched on, or that come to their end behind such ones.
  [[nodiscard]] const std::vector<c10::cuda::CUDAStream>& streams() const noexcept { return streams_; }
  void forget_streams() noexcept;

 private:
  template <typename Start>
  void launch(CudaPool& pool, Piece piece, const Start& start);
  [[noreturn]] static void refuse_inside_capture();
  [[nodiscard]] c10::cuda::CUDAStream stream_behind(const PoolTurn& turn) const;
  void note_stream(CudaPool& pool, c10::cuda::CUDAStream stream, const PoolTurn& turn);

  // What a launch reads, in this order: see CudaBackend.
  c10::Device device_;
  LedgerEntry entry_;
  std::optional<c10::Stream> last_stream_;
  CUstream last_handle_ = nullptr;
  GeneratorClock clock_;
  std::unique_ptr<WatchedReplays> watched_;  // where they communicate

  std::vector<at::Generator> drawn_from_;
  std::vector<c10::cuda::CUDAStream> streams_;
};

}  // namespace pianola::graph
