#include <pianola/audit/cuda/busy_time.hpp>

#include <fmt/format.h>

namespace pianola::auditing {
namespace {

using Clock = std::chrono::steady_clock;

// Of less, the time between two events on an idle stream is a part.
constexpr std::chrono::microseconds kShortest{100};

std::string milliseconds(std::chrono::duration<double> time) { return fmt::format("{:.2f} ms", 1e3 * time.count()); }

}  // namespace

// Note [When a step is bound by the device]
// The second of two runs that follow each other without a pause is timed. Where the host enqueues a run in less than
// half of the device's time, it has enqueued all of the second before the device is done with the first: the device
// went from work to work, its time holds no waiting for the host, and it would be the same in a graph. A host that
// waits for the device inside the step needs as long as the device, and is never found here.
std::optional<Finding> gpu_bound(const BusyTime& time) {
  if (time.device < kShortest || 2 * time.host >= time.device) return std::nullopt;
  Finding finding = Finding::of("PG1204");
  finding.what = "the device has work all the time: the host finishes long before it";
  finding.evidence = fmt::format("the host takes {} to enqueue what the device computes in {}", milliseconds(time.host),
                                 milliseconds(time.device));
  return finding;
}

void BusyTimer::start(c10::cuda::CUDAStream stream) {
  begin_.record(stream);
  started_ = Clock::now();
}

void BusyTimer::stop(c10::cuda::CUDAStream stream) {
  host_ = Clock::now() - started_;
  end_.record(stream);
  stopped_ = true;
}

BusyTime BusyTimer::time() {
  if (!stopped_) return {};
  end_.synchronize();
  return {.host = host_, .device = std::chrono::duration<double, std::milli>(begin_.elapsed_time(end_))};
}

BusyTime measure_busy_time(const std::function<void()>& step, c10::cuda::CUDAStream stream) {
  stream.synchronize();
  step();
  BusyTimer timer;
  timer.start(stream);
  step();
  timer.stop(stream);
  return timer.time();
}

}  // namespace pianola::auditing
