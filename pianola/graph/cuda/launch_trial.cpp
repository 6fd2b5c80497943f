#include <pianola/graph/cuda/launch_trial.hpp>

#include <pianola/cuda/capture_mode.hpp>

#include <ATen/cuda/CUDAEvent.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace pianola::graph {
namespace {

// Few launches: each moves the step's state on, and its counters may not stand many. Of long ones one is enough: their times
// scatter less than what is looked for, and the caller waits for all of them.
constexpr std::size_t kTurns = 3;
constexpr double kLongUs = 10'000;
// Launches of a turn take about so long together: less is lost in the resolution of the clock.
constexpr double kTurnUs = 100;
constexpr int kMostLaunches = 4;

/// Launches on a stream between two events.
class Turn {
 public:
  void run(const Executable& executable, c10::cuda::CUDAStream stream, int launches) {
    launches_ = launches;
    begin_.record(stream);
    for (int i = 0; i < launches; ++i) executable.launch(stream.stream());
    end_.record(stream);
  }
  /// Waits for it. @return  The time of one launch.
  double us() {
    end_.synchronize();
    return 1000.0 * begin_.elapsed_time(end_) / launches_;
  }

 private:
  at::cuda::CUDAEvent begin_{cudaEventDefault}, end_{cudaEventDefault};
  int launches_ = 1;
};

}  // namespace

LaunchTimes time_launches(const Executable& serial, const Executable& rebuilt, c10::cuda::CUDAStream stream) {
  const RelaxedCaptureMode relaxed(Driver::get());  // another thread may capture in global mode
  serial.upload(stream.stream());
  rebuilt.upload(stream.stream());
  rebuilt.launch(stream.stream());
  Turn warm_up;
  warm_up.run(serial, stream, 1);
  const double once_us = warm_up.us();
  const int launches = std::clamp(static_cast<int>(std::ceil(kTurnUs / std::max(once_us, 1.0))), 1, kMostLaunches);

  std::vector<Turn> of_serial(once_us > kLongUs ? 1 : kTurns), of_rebuilt(of_serial.size());
  for (std::size_t i = 0; i < of_serial.size(); ++i) {
    of_serial[i].run(serial, stream, launches);
    of_rebuilt[i].run(rebuilt, stream, launches);
  }
  LaunchTimes best{.serial_us = of_serial[0].us(), .rebuilt_us = of_rebuilt[0].us()};
  for (Turn& turn : of_serial) best.serial_us = std::min(best.serial_us, turn.us());
  for (Turn& turn : of_rebuilt) best.rebuilt_us = std::min(best.rebuilt_us, turn.us());
  return best;
}

}  // namespace pianola::graph
