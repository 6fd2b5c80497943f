#include <pianola/profile/read/time_check.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::profiling {
namespace {

constexpr std::string_view kFar = "it is more than 95 years from the zero of its clock";
constexpr Nanoseconds kLongestSum = 2 * kFurthestTime;

bool is_far(Nanoseconds time) noexcept { return time < -kFurthestTime || time > kFurthestTime; }

[[noreturn]] void throw_refusal(const std::string& file, std::string_view problem, std::string where) {
  throw UsageError({.what = fmt::format("{} has a time that cannot be right: {}", file, problem),
                    .where = std::move(where),
                    .fix = "the file was damaged, or what wrote it mixed up its clocks: record it again"});
}

}  // namespace

std::string_view TimeCheck::problem_with(TimeSpan time) noexcept {
  if (is_far(time.begin) || is_far(time.end)) return kFar;
  if (time.end < time.begin) return "it ends before it begins";
  if (time.duration() > kLongestProfile) return "it takes more than a year";
  const TimeSpan before = any_ ? extent_ : time;
  extent_ = {std::min(before.begin, time.begin), std::max(before.end, time.end)};
  any_ = true;
  if (extent_.duration() > kLongestProfile) return "it is more than a year away from what was recorded before it";
  if (time.duration() > kLongestSum - sum_) return "with it, what was recorded takes more than 190 years";
  sum_ += time.duration();
  return {};
}

void TimeCheck::refuse(TimeSpan time, std::string_view problem, const std::string& record) const {
  throw_refusal(file_, problem, fmt::format("{}, from {} ns to {} ns", record, time.begin, time.end));
}

void TimeCheck::refuse_far(const std::string& record) const { throw_refusal(file_, kFar, record); }

}  // namespace pianola::profiling
