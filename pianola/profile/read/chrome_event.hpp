#pragma once
#include <pianola/profile/read/time_check.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace pianola::profiling {

/// What an event of a Chrome trace is about, by its "cat".
enum class ChromeCategory : std::uint8_t {
  nothing,  ///< To us.
  kernel,
  copy,
  memset,
  cpu_work,
  call,
  operation,
  backward,
  annotation,
  python,  ///< Modules, by their names; and all other functions of Python.
  module,
  nsys_call,  ///< A call of CUDA or a range of NVTX, named as Nsight Systems does: see python/pianola/_nsight.py.
  nsys_range,
  instant  ///< What the allocator did, by its name; and whatever else torch notes of one moment.
};
[[nodiscard]] ChromeCategory category_of(std::string_view cat) noexcept;

/// Torch's name for what its allocator did.
inline constexpr std::string_view kMemoryEvent = "[memory]";

/// Fields of an event, and of its "args".
enum class ChromeField : std::uint8_t {
  other,
  args,
  phase,
  category,
  name,
  time,
  duration,
  process,
  thread,
  device,
  stream,
  correlation,
  bytes,
  graph,
  graph_node,
  issuer,
  memory_device_type,
  memory_device,
  memory_bytes,
  memory_address,
  memory_allocated,
  memory_reserved
};
[[nodiscard]] ChromeField field_of(std::string_view key) noexcept;
[[nodiscard]] ChromeField arg_of(std::string_view key) noexcept;

/// One event, as far as it was read.
struct ChromeEvent {
  std::string name;
  ChromeCategory category = ChromeCategory::nothing;
  bool has_phase = false;  ///< As every event of a Chrome trace has.
  bool has_name = false;
  bool malformed = false;  ///< A field has a value of the wrong type.
  bool far = false;        ///< Its time or duration is a number too large for any time.
  std::size_t number = 0;  ///< In the list of events, from 1.
  std::optional<Nanoseconds> time, duration;
  std::optional<std::int64_t> process, thread, device, stream;
  std::optional<std::int64_t> issuer;  ///< Process that issued the work; Pianola writes it, torch does not.
  std::uint64_t correlation = 0, bytes = 0, graph = 0, graph_node = 0;
  std::optional<std::int64_t> memory_device_type, memory_device, memory_bytes;
  std::optional<std::uint64_t> memory_address;
  std::uint64_t memory_allocated = 0, memory_reserved = 0;

  void clear();  ///< Keeps the memory of `name`.
};

/// Turns the events of one trace into a timeline.
class ChromeEvents {
 public:
  explicit ChromeEvents(Timeline& timeline) : timeline_(timeline), check_("the " + timeline.source) {}

  /// @throws UsageError  The event has a time that cannot be right.
  void add(const ChromeEvent& event);

  /// When all were added: finds out which process and graph work belongs to, sorts, nests the ranges, and says in the
  /// notes what was left out. Every time is moved by `base`. Makes a profile of the CPU where there is no other.
  /// @throws UsageError  That moves them too far.
  void finish(Nanoseconds base);

 private:
  bool is_usable(const ChromeEvent& event);
  TimeSpan time_of(const ChromeEvent& event);
  void leave_out(const ChromeEvent& event);
  void add_work(const ChromeEvent& event, DeviceWork::Kind kind);
  void add_call(const ChromeEvent& event, std::string_view name);
  void add_range(const ChromeEvent& event, std::string_view name, HostRange::Kind kind);
  void add_memory(const ChromeEvent& event);
  std::int32_t process(std::int64_t pid);

  void move(Nanoseconds base);
  void profile_cpu();
  void note_left_out();

  Timeline& timeline_;
  TimeCheck check_;
  std::unordered_map<std::int64_t, std::int32_t> processes_;  ///< Those with host events, numbered as they appear.
  bool calls_may_nest_ = false;                               ///< The runtime's and the driver's were recorded.
  std::size_t without_duration_ = 0, malformed_ = 0;
  std::string first_malformed_;
};

}  // namespace pianola::profiling
