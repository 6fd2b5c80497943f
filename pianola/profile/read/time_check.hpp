#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pianola::profiling {

/// The furthest that a time may be from the zero of its clock, 95 years: two times differ by less than Nanoseconds can hold,
/// and a time and a duration add up to less.
inline constexpr Nanoseconds kFurthestTime = 3'000'000'000'000'000'000;
/// What a profile may last from its first begin to its last end: a year.
inline constexpr Nanoseconds kLongestProfile = 365LL * 24 * 3600 * 1'000'000'000;

/// What a copy, a block or the memory of a device may have at most, 64 PiB: sums and shares of such numbers stay numbers.
inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 56;

/// Looks at the times of each record that a reader adds to its timeline, so that no sum or difference of times can overflow
/// in what comes after: each time is within kFurthestTime, nothing ends before it begins, all lie within kLongestProfile, and
/// all durations together are at most 2 * kFurthestTime.
class TimeCheck {
 public:
  /// @param file  In words: "the trace 'step.json'".
  explicit TimeCheck(std::string file) : file_(std::move(file)) {}

  /// @param record  Called where it is refused, and then says which one it is: "event 7, 'gemm'".
  /// @throws UsageError  Its times cannot be right; the message names the file and the record.
  template <class Record>
  void operator()(TimeSpan time, const Record& record) {
    if (const std::string_view problem = problem_with(time); !problem.empty()) refuse(time, problem, record());
  }

  /// Of a time that cannot even be told as Nanoseconds.
  /// @throws UsageError  Always.
  [[noreturn]] void refuse_far(const std::string& record) const;

 private:
  [[nodiscard]] std::string_view problem_with(TimeSpan time) noexcept;
  [[noreturn]] void refuse(TimeSpan time, std::string_view problem, const std::string& record) const;

  std::string file_;
  TimeSpan extent_;
  Nanoseconds sum_ = 0;
  bool any_ = false;
};

}  // namespace pianola::profiling
