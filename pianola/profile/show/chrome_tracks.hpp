#pragma once
#include <pianola/profile/show/trace_output.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pianola::profiling {

/// The rows of a written trace. Each host process and each of its devices is a process of the viewer; what overlaps on
/// one row is spread over several, since viewers show only what lies inside each other or apart.
class ChromeTracks {
 public:
  /// The pid of a host process; threads keep their numbers.
  [[nodiscard]] static std::int64_t host(std::int32_t process) noexcept { return kFirstHost + process; }

  /// The row for something on a device, by the group that it belongs to ("stream 7", "gaps") and its time. Of a group,
  /// ask in the order of begins.
  Track place(std::int32_t process, std::int32_t device, const std::string& group, TimeSpan time);

  /// Notes that a thread appears.
  void host_thread(std::int32_t process, std::int64_t thread) { threads_.emplace(process, thread); }

  /// Writes the names of all rows, hosts first.
  void name(TraceOutput& output) const;

 private:
  static constexpr std::int64_t kFirstHost = 1, kFirstDevice = 1'000'000;

  struct Lane {
    std::int64_t thread = 0;
    Nanoseconds end = 0;
  };
  struct Device {
    std::int64_t process = 0;
    std::int64_t lanes = 0;
    std::map<std::string, std::vector<Lane>> groups;
  };
  std::map<std::pair<std::int32_t, std::int32_t>, Device> devices_;
  std::set<std::pair<std::int32_t, std::int64_t>> threads_;
};

}  // namespace pianola::profiling
