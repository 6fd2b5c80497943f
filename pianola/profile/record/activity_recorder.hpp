#pragma once
#include <pianola/profile/record/activity_api.hpp>
#include <pianola/profile/record/activity_buffers.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace pianola::profiling {

struct RecorderOptions {
  std::string path;                                   ///< Of the recording.
  std::uint64_t max_bytes = std::uint64_t{1} << 30U;  ///< Of its file; when reached, recording ends.
  BufferOptions buffers = {};
  bool ranges = false;  ///< NVTX ranges too, where CUPTI gets to see them.
  /// What passes before anything is recorded, and how long it is then; 0: at once, and to the end. Before, CUPTI watches
  /// calls alone; after it, the program goes on at its own speed.
  std::chrono::milliseconds delay{0}, duration{0};
  /// How often what came is written, and CUPTI asked for what it has, which holds the program up, where nothing came. A
  /// crash loses what was done in this time, or what filled no buffer.
  std::chrono::milliseconds period{500};
  /// How long stop() waits for what CUPTI still has: it must not keep a program from ending.
  std::chrono::milliseconds patience{10'000};
};

/// While it lives, records this process's work on devices, its calls of CUDA that launch, copy or wait, and if
/// asked its NVTX ranges into a file.
///
/// A thread of its own takes what CUPTI delivers apart and writes it. It subscribes to CUPTI, which has one subscriber per
/// process: that shows whether another profiler is at work, and keeps later ones from taking the records. One at a time
/// per process. Throws nothing but std::bad_alloc.
class ActivityRecorder {
 public:
  struct Opening {
    std::unique_ptr<ActivityRecorder> recorder;  ///< nullptr: there is none, and CUPTI is as it was.
    Diagnosis problem;                           ///< Why not.
  };
  [[nodiscard]] static Opening start(const ActivityApi& api, const RecorderOptions& options);

  ActivityRecorder(const ActivityRecorder&) = delete;
  ActivityRecorder& operator=(const ActivityRecorder&) = delete;
  /// stop()
  ~ActivityRecorder();

  /// Asks CUPTI for all that it has, complete or not, writes it with the end mark, and ends the subscription. Work that
  /// devices have not ended is left out: synchronize first.
  ///
  /// @return  Why the recording is not complete; empty: it is. Later calls return the same.
  std::string stop();
  /// The same at the end of the process, but leaves CUPTI as it is: other threads may be inside of it, and what is destroyed
  /// later still calls CUDA.
  std::string stop_at_exit();

 private:
  struct Session;
  bool write_the_rest();
  explicit ActivityRecorder(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  std::shared_ptr<Session> session_;  // the thread's too: it may be late
  std::string outcome_;
};

}  // namespace pianola::profiling
