#pragma once
#include <pianola/graph/island.hpp>

#include <optional>
#include <utility>
#include <vector>

namespace pianola::graph {

/// The islands of a capture's runs, of one run at a time: a recording takes their results for what they were in the run before it.
class RunIslands {
 public:
  void begin_eager_run() {
    end_run();
    open_.emplace(islands_.emplace());
  }
  /// @throws UsageError  As Islands::notes(), of the run before.
  void begin_recording() {
    end_run();
    std::vector<IslandNotes> run_before = islands_ ? islands_->notes() : std::vector<IslandNotes>();
    open_.emplace(islands_.emplace(std::move(run_before)));
  }
  /// From here on no island is found. Also where no run has begun.
  void end_run() noexcept { open_.reset(); }
  /// Whether the last run had some. @throws UsageError  As Islands::notes().
  [[nodiscard]] bool any() const { return islands_ && !islands_->notes().empty(); }

 private:
  std::optional<Islands> islands_;
  std::optional<Islands::Open> open_;
};

}  // namespace pianola::graph
