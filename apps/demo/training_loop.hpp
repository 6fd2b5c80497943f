#pragma once
#include <apps/demo/trainer.hpp>

#include <cstdint>
#include <functional>
#include <optional>

namespace pianola::demo {

/// How far a training has come, at its start and about ten times on the way.
struct Progress {
  std::int64_t done = 0;  ///< Steps.
  double loss = 0;        ///< Mean since the last report.
  double steps_per_second = 0;
};

/// What a training took.
struct RunFigures {
  double wall_seconds = 0;
  double steps_per_second = 0;
  double host_us_per_step = 0;  ///< Until the host has handed over a step: batch, learning rate, step.
  double last_loss = 0;         ///< Mean over the last tenth.
  std::optional<std::int64_t> working_bytes =
      {};  ///< Device memory in use at most, less that at the start; not on a CPU.
};

/// Trains for `steps` steps, each of them `trainer.load(next batch)` and `step()`. The device is waited for at reports only.
RunFigures run_training(Trainer& trainer, BatchStream& batches, std::int64_t steps, const std::function<void()>& step,
                        const std::function<void(const Progress&)>& report);

}  // namespace pianola::demo
