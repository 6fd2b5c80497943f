#include <apps/demo/experiment.hpp>

namespace pianola::demo {
namespace {

std::vector<float> on_host(const at::Tensor& losses) {
  const at::Tensor copy = losses.to(at::kCPU).contiguous();
  const auto* first = copy.const_data_ptr<float>();
  return {first, first + copy.numel()};
}

}  // namespace

Experiment::Experiment(const Text& text, const TrainerConfig& config, c10::Device device, int branches)
    : config_(config),
      device_(device),
      branches_(branches),
      batches_(text, config.batch, config.model.context, config.seed) {}

void Experiment::run(const Watcher& watcher) {
  const auto expected = run_eager(watcher);
  const auto actual = run_replay(watcher);
  comparison_ = compare(expected, actual);
}

std::vector<NamedTensor> Experiment::run_eager(const Watcher& watcher) {
  Trainer& trainer = eagerly_.emplace(config_, device_);
  BatchStream batches = batches_;
  const Iterate iterate = [&] { return trainer.step(); };
  warm_up(trainer, batches, kWarmup, iterate);
  eager_ = run_training(trainer, batches, config_.steps, iterate, watcher.eager);
  return trainer.state();
}

std::vector<NamedTensor> Experiment::run_replay(const Watcher& watcher) {
  Trainer& trainer = replayed_.emplace(config_, device_);
  BatchStream batches = batches_;
  inspect(trainer, watcher);
  FullIteration iteration([&](const auto& microbatches) -> c10::IValue { return trainer.step(microbatches); },
                          {.warmup = kWarmup - 1, .branches = branches_});
  const Iterate iterate = [&] { return iteration(trainer.inputs()).toTensor(); };
  warm_up(trainer, batches, kWarmup, iterate);
  iteration_ = iteration.info();
  graph_.branches = iteration_.signatures.front().branches;
  graph_.pool_bytes = iteration_.pool_bytes;
  if (watcher.captured) watcher.captured(graph_);
  replay_ = run_training(trainer, batches, config_.steps, iterate, watcher.replay);
  iteration_ = iteration.info();
  return trainer.state();
}

// FullIteration keeps its graph to itself. What a graph of the step has to tell, one of its own tells; its capture leaves
// no trace, and it is gone before the training begins.
void Experiment::inspect(Trainer& trainer, const Watcher& watcher) {
  trainer.load(BatchStream(batches_).next());
  Graph graph(device_);
  graph.capture([&] { trainer.step(); }, {.branches = branches_});
  graph_ = graph.info();
  if (watcher.inspected) watcher.inspected(graph);
}

std::vector<float> Experiment::eager_losses() const { return on_host(eagerly_->losses()); }
std::vector<float> Experiment::replay_losses() const { return on_host(replayed_->losses()); }

}  // namespace pianola::demo
