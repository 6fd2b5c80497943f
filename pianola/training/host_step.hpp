#pragma once
// Not in <pianola/pianola.hpp>: it wants the headers of torch/torch.h.
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace pianola {

/// A part of a step that the host computes anew in each call: what an optimizer of one's own gives to its operations.
struct HostStep {
  /// The part. A graph keeps a copy and calls it at each replay, so that what it refers to has to live as long.
  std::function<void()> run;
  /// Parameters whose gradients it uses.
  std::vector<at::Tensor> parameters = {};
  /// Returns what puts back all that `run` changes on the host (counts, rates; not tensors), as it is now. Called where
  /// a capture begins; what it returns, where that fails. Empty: a capture that fails leaves them one step ahead.
  std::function<std::function<void()>()> save = {};
};

/// Calls `step.run`, as a part that replays of `graphed` and `FullIteration` run again: its calls of operators are
/// recognised as those that the graph holds and not made, the numbers that they are given go into the graph, and what it
/// does otherwise happens. Where it calls other operators than in the capture, that replay runs it eagerly, and the step is
/// captured anew.
///
/// Outside of such a function it is a call of `step.run`. It must not compute what autograd differentiates, nor run a
/// backward pass. What it throws reaches the caller.
///
/// Threads:  Called on the thread that calls the graphed function.
PIANOLA_API void host_step(HostStep step);

/// optimizer.step(), as a part that replays run again: rates and bias corrections are those of eager, and so is its
/// state, which checkpoints save. Any optimizer of torch::optim that needs no closure, as it comes:
///
///     auto train = pianola::graphed([&](const at::Tensor& x, const at::Tensor& y) {
///       optimizer.zero_grad();
///       at::Tensor loss = torch::mse_loss(model->forward(x), y);
///       loss.backward();
///       pianola::step(optimizer);
///       return loss;
///     });
///
/// The optimizer has to outlive the graphed function. Its rates may be set between calls.
PIANOLA_API void step(torch::optim::Optimizer& optimizer);

/// scheduler.step(), where `optimizer` is the one whose rates it sets. Both have to outlive the graphed function.
template <std::derived_from<torch::optim::LRScheduler> Scheduler>
requires std::copy_constructible<Scheduler>
void step(Scheduler& scheduler, torch::optim::Optimizer& optimizer);

namespace training {

/// Puts something back as it was.
using PutBack = std::function<void()>;

/// What puts the optimizer's options and counts back, as they are now.
[[nodiscard]] PIANOLA_API PutBack saved_state(torch::optim::Optimizer& optimizer);

}  // namespace training

template <std::derived_from<torch::optim::LRScheduler> Scheduler>
requires std::copy_constructible<Scheduler>
void step(Scheduler& scheduler, torch::optim::Optimizer& optimizer) {
  // Its members are constants and references: it is put back by making it anew in its place.
  const auto save = [&scheduler, &optimizer]() -> std::function<void()> {
    return [&scheduler, before = scheduler, rates = training::saved_state(optimizer)] {
      std::destroy_at(&scheduler);
      std::construct_at(&scheduler, before);
      rates();
    };
  };
  host_step({.run = [&scheduler] { scheduler.step(); }, .save = save});
}

}  // namespace pianola
