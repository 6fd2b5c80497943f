#pragma once
#include <apps/demo/comparison.hpp>
#include <apps/demo/text.hpp>
#include <apps/demo/trainer.hpp>
#include <apps/demo/training_loop.hpp>

#include <pianola/graph/graph.hpp>
#include <pianola/training/full_iteration.hpp>

#include <functional>
#include <optional>
#include <vector>

namespace pianola::demo {

/// The same training twice, from the same bits: eager, then by a pianola::FullIteration, which replays the whole step.
/// Both begin with `kWarmup` steps that no figure counts; the last of them is the one that is captured.
class Experiment {
 public:
  static constexpr int kWarmup = 4;

  /// What a caller may want to show while it runs; each may be empty.
  struct Watcher {
    std::function<void(const Progress&)> eager = {};
    /// The step in a graph to look at: equal to the one that is replayed, and gone afterwards.
    std::function<void(const Graph&)> inspected = {};
    /// What graph() returns.
    std::function<void(const GraphInfo&)> captured = {};
    std::function<void(const Progress&)> replay = {};
  };

  /// @param branches  Of the graph; see pianola::FullIterationOptions.
  /// @throws pianola::UsageError  The text is too short.
  Experiment(const Text& text, const TrainerConfig& config, c10::Device device, int branches = 0);

  void run(const Watcher& watcher);

  [[nodiscard]] const RunFigures& eager() const noexcept { return eager_; }
  [[nodiscard]] const RunFigures& replay() const noexcept { return replay_; }
  /// Pool and branches are those of the graph that is replayed, all else is of the one to look at.
  [[nodiscard]] const GraphInfo& graph() const noexcept { return graph_; }
  [[nodiscard]] const FullIterationInfo& iteration() const noexcept { return iteration_; }
  [[nodiscard]] const Comparison& comparison() const noexcept { return comparison_; }
  [[nodiscard]] std::vector<float> eager_losses() const;
  [[nodiscard]] std::vector<float> replay_losses() const;
  /// The model that was trained by replays.
  [[nodiscard]] const CharGpt& model() const { return replayed_->model(); }

 private:
  std::vector<NamedTensor> run_eager(const Watcher& watcher);
  std::vector<NamedTensor> run_replay(const Watcher& watcher);
  void inspect(Trainer& trainer, const Watcher& watcher);

  TrainerConfig config_;
  c10::Device device_;
  int branches_;
  BatchStream batches_;  // at its beginning: each run takes a copy
  std::optional<Trainer> eagerly_;
  std::optional<Trainer> replayed_;
  RunFigures eager_;
  RunFigures replay_;
  GraphInfo graph_;
  FullIterationInfo iteration_;
  Comparison comparison_;
};

}  // namespace pianola::demo
