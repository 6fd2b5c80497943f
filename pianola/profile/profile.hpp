#pragma once
#include <pianola/core/export.hpp>
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/timeline.hpp>

#include <filesystem>
#include <functional>
#include <string>

namespace pianola {

struct ProfileOptions {
  int warmup = 3;       ///< Runs before; 0 or more.
  int iterations = 10;  ///< Runs that are timed, and again as many that are recorded; 1 or more.
  /// Record Python's modules too, which slows Python down; without Python nothing changes.
  bool modules = false;
  /// Record what torch's allocator does, to tell what memory a graph takes. Costs the host time for each block.
  bool memory = true;
  /// Where to keep what was recorded, a Chrome trace, compressed with gzip if the name ends in ".gz"; empty: it is not kept.
  /// load_profile() judges it as profile() did.
  std::filesystem::path trace = {};
};

/// What a step does to the machine: recorded, analysed, judged.
struct PIANOLA_API Profile {
  Timeline timeline;
  Analysis analysis;
  Decision decision;

  /// The report for people. @param width  As Report::to_text.
  [[nodiscard]] std::string to_text(std::size_t width = 100) const;
  [[nodiscard]] std::string to_json() const;
  /// A page with pictures that needs nothing else.
  [[nodiscard]] std::string to_html() const;
};

/// Analyses and judges a timeline. @throws UsageError  As analyse().
[[nodiscard]] PIANOLA_API Profile judge(Timeline timeline, const AnalysisOptions& options = {});

/// Reads, analyses and judges a profile that was recorded before.
/// @throws UsageError  As read_profile() and analyse().
[[nodiscard]] PIANOLA_API Profile load_profile(const std::filesystem::path& path, const AnalysisOptions& options = {});

/// Runs a step a few times and says whether a graph would help, and which:
///
///     pianola::Profile profile = pianola::profile([&] { train_step(batch); });
///     std::cout << profile.to_text();
///
/// Records with torch's own profiler: on CUDA the device's work and the calls that issue it, everywhere ATen's operations.
/// Without CUDA work the operations themselves are taken for the work. A profiler costs the host time for each operation:
/// the step is timed first, unrecorded, and it is that time which graphs are held against.
///
/// Threads:  The calling one, and those of autograd.
/// Streams:  The current one. Waits for the device before and after the timed and the recorded runs.
/// @throws UsageError  An option is out of range, the step does nothing that can be recorded, a profiler is active
///                     already, or the trace cannot be written.
/// Whatever the step throws reaches the caller unchanged.
[[nodiscard]] PIANOLA_API Profile profile(const std::function<void()>& step, const ProfileOptions& options = {});

}  // namespace pianola
