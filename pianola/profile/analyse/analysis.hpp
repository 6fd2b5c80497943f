#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/capture_room.hpp>
#include <pianola/profile/timeline.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// Why a device had nothing to do.
enum class GapCause : std::uint8_t {
  launch,           ///< The host had not issued the next work yet, though it was busy issuing or computing.
  synchronization,  ///< The host had waited for the device, and issued nothing meanwhile.
  data,             ///< The host was loading data: inside a range of a data loader.
  copy,             ///< A kernel that was issued waited for a copy between host and device, and nothing else ran. The
                    ///< device is busy then, with the copy: such a gap is part of `busy`, not added to it.
  device            ///< The next work was issued long before: the latency between two kernels, or a dependency.
};
inline constexpr std::size_t kGapCauses = 5;
/// "launch", "synchronization", ...
[[nodiscard]] PIANOLA_API const char* in_words(GapCause cause) noexcept;

/// A stretch without work on a device, or of GapCause::copy without any but a copy, within an iteration.
struct Gap {
  TimeSpan time;
  GapCause cause = GapCause::launch;
  std::size_t next = 0;                ///< The work that ended it, in Timeline::work.
  std::optional<std::size_t> culprit;  ///< The call that waited, in Timeline::calls; of GapCause::synchronization.
};

/// One iteration of one device.
struct Iteration {
  TimeSpan time;                                  ///< To the begin of the next one; else to the end of its work.
  std::size_t first_work = 0, last_work = 0;      ///< Half-open range in Analysis::order.
  Nanoseconds busy = 0;                           ///< Union of all work over streams.
  std::array<Nanoseconds, kGapCauses> idle = {};  ///< By cause; all but `copy` add up to `time` with `busy`.
  std::size_t kernels = 0;
  std::size_t launches = 0;  ///< Calls that launch a kernel, a graph, a copy or a memset.
  std::size_t graph_launches = 0;
  std::size_t synchronizations = 0;  ///< Calls that wait; a copy that waits is a launch too.
  Nanoseconds in_launches = 0;       ///< Host time inside launch calls, but for those that wait.
  TimeSpan host = {};                ///< When the host issued it: from its first launch or its range on.
};

/// How long kernels run.
struct DurationSummary {
  /// Kernels by duration; bin i holds those of less than 2^i us and at least 2^(i-1) us, bin 0 those below 1 us.
  std::array<std::size_t, 21> histogram = {};
  std::size_t kernels = 0;
  Nanoseconds total = 0;
  Nanoseconds median = 0, longest = 0;
  double share_small = 0;  ///< Of the kernels, those below 50 us.
  double share_long = 0;   ///< Of the kernels' time, that of kernels of 1 ms or more.
};

/// All that was issued under one name, over all iterations: in an annotation, a module, an autograd node, an operation.
/// A counter at the end of a name is left out: "ProfilerStep#12" counts as "ProfilerStep".
struct Region {
  std::string name;
  HostRange::Kind kind = HostRange::Kind::annotation;
  std::size_t entries = 0;  ///< Per iteration, rounded.
  double kernels = 0;       ///< Issued inside, per iteration.
  Nanoseconds busy = 0;     ///< Of that work, per iteration; what runs side by side counts each.
  Nanoseconds idle = 0;     ///< Gaps that end with that work, but for `copy`, per iteration.
};

/// A wait of the host for the device, whether or not it left the device idle.
struct Wait {
  std::string call;    ///< "cudaStreamSynchronize"
  std::string inside;  ///< Innermost operation and annotation around it: "aten::_local_scalar_dense, in 'logging'"; may
                       ///< be empty. ProfilerStep does not count.
  double per_iteration = 0;
  Nanoseconds idle = 0;  ///< Of the gaps that it is the culprit of, per iteration.
};

/// What torch's allocator handed out during the iterations, of the device and the process that are looked at.
struct MemoryUse {
  /// Of an iteration, the most bytes at a time in blocks that it asked for itself; the median. Neither parameters count,
  /// nor what the iteration before has left behind, such as gradients.
  std::uint64_t own = 0;
  std::uint64_t allocated = 0;  ///< The most bytes at a time in blocks of whatever age; 0: unknown, as on a CPU.
  std::uint64_t reserved = 0;   ///< The most that the allocator held of the device; 0: unknown, as on a CPU.
  /// What the device has left for captures; nothing: the profile does not say.
  std::optional<memory::FreeMemory> left = {};
  bool left_at_most = false;  ///< `left` is what torch's allocator leaves of the device: others are not in the profile.
};

/// How iterations were told apart.
enum class IterationsBy : std::uint8_t { range, repetition, nothing };

/// The annotation around each run that profile() records.
inline constexpr const char* kProfiledStep = "pianola::profile step";

struct AnalysisOptions {
  /// Each entry of the annotation of this name begins an iteration; empty: kProfiledStep, where Timeline::unrecorded says
  /// what that takes, else iterations are found by themselves.
  std::string range = {};
  std::int32_t process = -1;  ///< -1: the one with most pieces of work.
  std::int32_t device = -2;   ///< -2: the one with most pieces of work; the CPU only where no GPU worked.
};

/// What a timeline says about one device's iterations.
///
/// Where no iteration repeats, the whole timeline is one, `by` is nothing, and `problem` says why.
struct Analysis {
  std::int32_t process = 0;
  std::int32_t device = 0;
  IterationsBy by = IterationsBy::nothing;
  std::string range;       ///< The annotation, where it is one.
  std::string problem;     ///< Why no iterations were found; empty where they were.
  std::size_t warmup = 0;  ///< Iterations left out at the beginning, since they took over twice the median.

  std::vector<std::size_t> order;  ///< The device's work in Timeline::work, by begin.
  std::vector<Iteration> iterations;
  std::vector<Gap> gaps;  ///< Of all iterations, by begin; those of GapCause::copy overlap no others.

  // Over the iterations: medians, unless said otherwise.
  Nanoseconds duration = 0;
  Nanoseconds unrecorded = 0;  ///< Timeline::unrecorded; where that is unknown, or of other iterations, `duration`.
  Nanoseconds busy = 0;
  double utilisation = 0;  ///< busy / duration of all iterations together, or busy / unrecorded if known; 0 to 1.
  double jitter = 0;       ///< Standard deviation of durations over their mean.
  double kernels = 0, launches = 0, graph_launches = 0, synchronizations = 0;
  Nanoseconds in_launches = 0;
  std::array<Nanoseconds, kGapCauses> idle = {};  ///< Means, by cause.

  std::optional<MemoryUse> memory;  ///< Nothing: the profile does not say what the allocator did.

  DurationSummary durations;    ///< Of the kernels of all iterations.
  std::vector<Region> regions;  ///< Those with most idle time first; at most 200.
  std::vector<Wait> waits;      ///< Those with most idle time first, of equal ones the more frequent.
};

/// @param timeline     Sorted.
/// @throws UsageError  There is no device work at all, no such process, device or range, or it is not sorted.
/// Cost:   O(n log n) in the events; about a second for four million.
/// Threads:  Any number may analyse one timeline at a time.
[[nodiscard]] PIANOLA_API Analysis analyse(const Timeline& timeline, const AnalysisOptions& options = {});

}  // namespace pianola
