#include <pianola/graph/cuda/launcher.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/capture_info.hpp>
#include <pianola/graph/cuda/thread_streams.hpp>
#include <pianola/graph/foreign_draws.hpp>
#include <pianola/graph/stream_order.hpp>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <mutex>

namespace pianola::graph {

void Launcher::launch(CudaPool& pool, const Executable* executable, Piece piece) {
  launch(pool, piece, [executable](const PoolTurn& /*turn*/, CUstream stream) {
    if (executable != nullptr) executable->launch(stream);
  });
}

void Launcher::launch_shared(CudaPool& pool, const SharedExecutable& shared, const void* as, Take take) {
  launch(pool, {}, [&](const PoolTurn& turn, CUstream stream) {
    (shared.is_of(as) ? shared.executable() : take(turn, stream)).launch(stream);
  });
}

// @param start  Called where nothing refuses it any more.
template <typename Start>
void Launcher::launch(CudaPool& pool, Piece piece, const Start& start) {
  c10::cuda::OptionalCUDAGuard on_device;
  if (c10::cuda::current_device() != device_.index()) on_device.set_index(device_.index());
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_.index());
  const CUstream handle =
      stream.unwrap() == last_stream_ ? last_handle_ : stream.stream();  // torch asks for the device each time
  if (capture_status(handle) != CaptureStatus::none) [[unlikely]]
    refuse_inside_capture();
  const PoolTurn turn(pool.turns());
  pool.check_ready();
  if (piece.is_first) entry_.check_reads(turn);
  EnteredStream entered(turn.order(), stream.unwrap());
  std::optional<ForeignDraws::Unseen> draws;
  if (!clock_.idle()) draws.emplace(drawn_from_);
  GeneratorClock::Turn numbers(clock_, stream.unwrap());
  if (watched_) [[unlikely]]
    WatchedReplays::check();
  start(turn, handle);
  if (watched_ && piece.is_last) [[unlikely]]
    watched_->launched(handle);
  if (piece.is_last) numbers.launched();
  entry_.sign(turn);
  if (may_end(stream.unwrap())) [[unlikely]] {
    turn.order().leave();
    numbers.leave();
    note_stream(pool, stream_behind(turn), turn);
  } else if (stream.unwrap() != last_stream_) {
    note_stream(pool, stream, turn);
  }
  entered.done();
}

void Launcher::order_behind_replays(CudaPool& pool) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_.index());
  if (capture_status(stream.stream()) != CaptureStatus::none) refuse_inside_capture();
  const PoolTurn turn(pool.turns());
  pool.check_ready();
  turn.order().enter(stream.unwrap());
  if (may_end(stream.unwrap())) turn.order().leave();  // the launch enters again, if it comes so far
}

bool Launcher::hold_trial(CudaPool& pool, c10::function_ref<bool()> try_it) {
  const c10::Stream stream = c10::cuda::getCurrentCUDAStream(device_.index());
  const PoolTurn turn(pool.turns());
  EnteredStream entered(turn.order(), stream);
  const ForeignDraws::Unseen draws(drawn_from_);
  GeneratorClock::Turn numbers(clock_, stream);
  numbers.forget();  // before anything can throw
  // Alone in its pool it overwrites nobody's results, and what it computes is nobody's: it does not count as a replay.
  if (turn.ledger().graphs() > 1) entry_.sign(turn);
  const bool answer = try_it();
  turn.order().leave();
  numbers.leave();
  entered.done();
  return answer;
}

void Launcher::draw_from(GeneratorClock clock, const GeneratorClock::Drawable& drawable) {
  clock_ = std::move(clock);
  for (const auto& [state, generator] : drawable) {
    if (clock_.draws_from(state)) drawn_from_.push_back(generator);
  }
}

std::uint64_t Launcher::place_of_generators() const {
  std::uint64_t all = 0;
  for (at::Generator generator : drawn_from_) {
    const std::lock_guard lock(generator.mutex());
    all += generator.get_offset();
  }
  return all;
}

void Launcher::stop() noexcept {
  watched_.reset();
  clock_ = {};
  drawn_from_.clear();
}

void Launcher::forget_streams() noexcept {
  streams_.clear();
  last_stream_.reset();
}

// It would become part of that capture as it is now: with the numbers that the generator stands at, and the inputs of this
// replay, for ever.
void Launcher::refuse_inside_capture() {
  throw UsageError(
      {.what = "replay() was called while the current stream is being captured by other code; graphs do not "
               "nest, and nothing was launched",
       .fix = "inside the other capture, call the code that the graph was captured from; or replay outside of it"});
}

// One that stays, and waits for the mark that the turn's order has just made: the replay's stream may be gone when it is waited for.
c10::cuda::CUDAStream Launcher::stream_behind(const PoolTurn& turn) const {
  const c10::cuda::CUDAStream behind = thread_stream(StreamPurpose::after_replays, device_.index());
  turn.order().block(behind.unwrap());
  return behind;
}

// Memory that the graph lets go of may be in use there until that work is done. What throws here leaves the stream to the next launch: it
// is the last one where its handle, and whoever has to wait for it, are known.
void Launcher::note_stream(CudaPool& pool, c10::cuda::CUDAStream stream, const PoolTurn& turn) {
  last_stream_.reset();
  pool.note_replays_on(stream, turn);
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
  last_handle_ = stream.stream();
  last_stream_ = stream.unwrap();
}

}  // namespace pianola::graph
