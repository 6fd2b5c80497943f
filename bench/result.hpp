#pragma once
#include "harness.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace pianola::bench {

/// What a figure has to reach, and whether it did.
struct Requirement {
  std::string text;     ///< "Graph::replay() takes at most 1.01x of bare cudaGraphLaunch"
  double measured = 0;  ///< In the unit of the case, or a ratio, as `text` says.
  double limit = 0;
  bool met = false;
};

/// One comparison: the same work by several contenders.
struct Case {
  std::string name;      ///< "1000 nodes, random numbers"
  std::string measure;   ///< "host time per call"
  std::string unit;      ///< "us"
  std::string baseline;  ///< The contender that ratios are taken of; empty: none.
  int iterations = 1;    ///< Per sample.
  std::vector<Series> series;
  std::vector<Requirement> requirements = {};
  std::vector<std::string> notes = {};  ///< What a reader of the figures has to know, a sentence each.

  /// Median of a contender. @throws UsageError  There is no such contender.
  [[nodiscard]] double median_of(std::string_view contender) const;
};

/// What one benchmark measured.
struct Result {
  std::string benchmark;  ///< "cuda/replay_host"
  std::string title;
  std::vector<Case> cases;
  std::string error = {};  ///< Why there are no figures: the benchmark's own check failed, or something threw.
};

/// The median may exceed the baseline's by `absolute`, in the unit of the case, or by `relative`, whichever is more.
Requirement within(const Case& measured, const std::string& contender, double absolute, double relative);
Requirement at_most_ratio(const Case& measured, const std::string& contender, double limit);
/// `of`: the contender that is compared with; empty: the baseline.
Requirement at_least_speedup(const Case& measured, const std::string& contender, double limit,
                             const std::string& of = {});
/// The largest sample of all contenders. `text` says what is counted.
Requirement at_most(const Case& measured, std::string text, double limit);

}  // namespace pianola::bench
