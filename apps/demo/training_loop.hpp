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
  double host_us_per_step = 0;  ///< Until the host has handed over a step: batch, step, learning rate.
  double last_loss = 0;         ///< Mean over the last tenth.
  std::optional<std::int64_t> working_bytes =
      {};  ///< Device memory in use at most, less that at the start; not on a CPU.
};

/// Makes one step of the current batch and returns its loss.
using Iterate = std::function<at::Tensor()>;

/// Trains for `steps` steps that no figure counts: what comes first loads kernels, fills caches, captures. They are a part
/// of the training all the same, at its first learning rate.
void warm_up(Trainer& trainer, BatchStream& batches, int steps, const Iterate& iterate);

/// Trains for `steps` steps. The device is waited for at reports only.
RunFigures run_training(Trainer& trainer, BatchStream& batches, std::int64_t steps, const Iterate& iterate,
                        const std::function<void(const Progress&)>& report);

}  // namespace pianola::demo
