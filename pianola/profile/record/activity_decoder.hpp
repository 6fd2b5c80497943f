#pragma once
#include <pianola/profile/record/recorded_calls.hpp>
#include <pianola/profile/record/recording_writer.hpp>
#include <pianola/profile/timeline.hpp>

#include <cupti_activity.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

namespace pianola::profiling {

/// Makes records of a recording from CUPTI's. Kinds that it does not know are passed over. Threads: one at a time.
class ActivityDecoder {
 public:
  /// Both outlive it.
  ActivityDecoder(RecordingWriter& writer, const RecordedCalls& calls) : writer_(writer), calls_(calls) {}

  /// @param record  In a buffer as CUPTI filled it; strings are copied.
  void decode(const CUpti_Activity& record);
  /// From now on. Calls that begin earlier are dropped.
  void ignore_calls_before(Nanoseconds time) { first_call_ = time; }
  /// Ends the ranges that are still open at the last time that was seen, and notes what could not be used.
  void finish();

  /// Ranges that may be open at once, and ends of ranges whose begin has not come yet; beyond it they are dropped.
  static constexpr std::size_t kMostOpenRanges = 100'000;

 private:
  struct OpenRange {
    NameId name = 0;
    Nanoseconds begin = 0;
    std::int64_t thread = 0;
  };

  void add_kernel(const CUpti_ActivityKernel10& kernel);
  template <class Record>
  void add_copy(const Record& copy);
  void add_memset(const CUpti_ActivityMemset4& memset);
  void add_work(DeviceWork work);
  void add_call(const CUpti_ActivityAPI& call);
  void add_marker(const CUpti_ActivityMarker2& marker);
  void begin_range(const CUpti_ActivityMarker2& marker);
  void end_range(std::uint32_t id, Nanoseconds time);
  void add_device(const CUpti_ActivityDevice5& device);
  void saw(Nanoseconds time) { last_ = time > last_ ? time : last_; }

  RecordingWriter& writer_;
  const RecordedCalls& calls_;
  std::unordered_map<std::uint32_t, OpenRange> open_;
  std::unordered_map<std::uint32_t, Nanoseconds> early_ends_;  // threads' buffers do not come in the order of time
  std::unordered_set<std::uint32_t> devices_;
  Nanoseconds first_call_ = 0;
  Nanoseconds last_ = 0;
  std::size_t untimed_ = 0;
  std::size_t lost_ranges_ = 0;
};

}  // namespace pianola::profiling
