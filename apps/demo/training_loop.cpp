#include <apps/demo/training_loop.hpp>

#include <apps/demo/memory_account.hpp>

#include <algorithm>
#include <chrono>

namespace pianola::demo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Waits for the device, since it reads from there.
double mean_loss(const Trainer& trainer, std::int64_t from, std::int64_t to) {
  return trainer.losses().narrow(0, from, to - from).mean().item<double>();
}

}  // namespace

void warm_up(Trainer& trainer, BatchStream& batches, int steps, const Iterate& iterate) {
  for (int i = 0; i < steps; ++i) {
    trainer.load(batches.next());
    iterate();
  }
}

RunFigures run_training(Trainer& trainer, BatchStream& batches, std::int64_t steps, const Iterate& iterate,
                        const std::function<void(const Progress&)>& report) {
  const std::int64_t interval = std::max<std::int64_t>(steps / 10, 1);
  RunFigures figures;
  double host_seconds = 0;
  trainer.wait();
  const MemoryAccount memory(trainer.device());
  const auto start = Clock::now();
  for (std::int64_t done = 0, reported = 0; done < steps;) {
    const auto step_start = Clock::now();
    trainer.load(batches.next());
    trainer.finish(iterate());
    host_seconds += seconds_since(step_start);
    if (++done - reported < interval && done < steps) continue;
    figures.last_loss = mean_loss(trainer, reported, done);
    if (report)
      report({.done = done,
              .loss = figures.last_loss,
              .steps_per_second = static_cast<double>(done) / seconds_since(start)});
    reported = done;
  }
  figures.wall_seconds = seconds_since(start);
  figures.steps_per_second = static_cast<double>(steps) / figures.wall_seconds;
  figures.host_us_per_step = 1e6 * host_seconds / static_cast<double>(steps);
  figures.working_bytes = memory.most_beyond_start();
  return figures;
}

}  // namespace pianola::demo
