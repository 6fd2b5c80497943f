#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/capture_room.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pianola {

/// Nanoseconds on the clock of one timeline, which begins anywhere.
using Nanoseconds = std::int64_t;

/// A name by its number in Timeline::names.
using NameId = std::uint32_t;

/// A stretch of time; empty where it does not begin before it ends.
struct TimeSpan {
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  [[nodiscard]] Nanoseconds duration() const noexcept { return end - begin; }
  [[nodiscard]] bool contains(Nanoseconds time) const noexcept { return begin <= time && time < end; }
  friend bool operator==(const TimeSpan&, const TimeSpan&) = default;
};

/// What a device did: a kernel, a copy, or a memset; in a profile of CPU work, an outermost ATen operation.
struct DeviceWork {
  enum class Kind : std::uint8_t { kernel, copy, memset, operation };

  TimeSpan time;
  NameId name = 0;
  Kind kind = Kind::kernel;
  std::int32_t process = 0;       ///< Number in the order of appearance.
  std::int32_t device = 0;        ///< CUDA's number; -1: the CPU.
  std::int64_t stream = 0;        ///< CUDA's number; of CPU work, the thread.
  std::uint64_t correlation = 0;  ///< Of the HostCall that issued it, within the process; 0: unknown.
  std::uint64_t graph = 0;        ///< Of the graph whose launch did it; 0: none.
  std::uint64_t bytes = 0;        ///< Of a copy or memset.
};

/// A call of CUDA's runtime or driver.
struct HostCall {
  enum class Kind : std::uint8_t {
    launch,        ///< Of a kernel.
    graph_launch,  ///< Of a graph.
    copy,          ///< That returns early, and memsets.
    synchronize,   ///< Waits for the device: synchronizations, and copies that do.
    other
  };

  TimeSpan time;
  NameId name = 0;
  Kind kind = Kind::other;
  std::int32_t process = 0;
  std::int64_t thread = 0;
  std::uint64_t correlation = 0;
};

/// A named stretch of one thread's time; ranges of a thread lie inside each other or apart.
struct HostRange {
  enum class Kind : std::uint8_t {
    annotation,  ///< NVTX, record_function, and what torch annotates itself ("Optimizer.step#AdamW.step").
    operation,   ///< Of ATen.
    backward,    ///< An autograd node at work ("autograd::engine::evaluate_function: AddmmBackward0").
    module       ///< A module's forward ("nn.Module: Linear_3").
  };

  TimeSpan time;
  NameId name = 0;
  Kind kind = Kind::annotation;
  std::int32_t process = 0;
  std::int64_t thread = 0;
};

/// What torch begins the names of ranges of these kinds with.
inline constexpr std::string_view kBackwardPrefix = "autograd::engine::evaluate_function: ";
inline constexpr std::string_view kModulePrefix = "nn.Module: ";

/// What torch's allocator did for one device: it handed out a block, or took one back.
struct MemoryEvent {
  Nanoseconds time = 0;
  std::uint64_t address = 0;    ///< Of the block.
  std::int64_t bytes = 0;       ///< Of the block; negative: it was given back.
  std::uint64_t allocated = 0;  ///< Of the device in use afterwards.
  std::uint64_t reserved = 0;   ///< Of the device held by the allocator afterwards; 0: unknown.
  std::int32_t process = 0;
  std::int32_t device = 0;  ///< As of DeviceWork.
  std::int64_t thread = 0;
};

/// What is known of a device's memory.
struct MemoryOfDevice {
  std::int32_t device = 0;                      ///< As of DeviceWork.
  std::uint64_t total = 0;                      ///< Bytes that it has; 0: unknown.
  std::optional<memory::FreeMemory> left = {};  ///< What profile() found left for captures, just before it recorded.
};

/// What happened on the host and its devices, from whichever profiler.
///
/// Lists are sorted by begin, of two that begin together the longer first, once sort() was called, as readers do.
class PIANOLA_API Timeline {
 public:
  std::vector<DeviceWork> work;
  std::vector<HostCall> calls;
  std::vector<HostRange> ranges;
  std::vector<MemoryEvent> memory;      ///< Empty where the profiler did not watch the allocator.
  std::vector<MemoryOfDevice> devices;  ///< Of which something is known.
  std::string source;                   ///< What it was read from or made by, in words.
  std::string device_name;              ///< "NVIDIA H200"; empty: unknown.
  std::vector<std::string> notes;       ///< What was left out or is not as it should be, a sentence each.
  Nanoseconds unrecorded = 0;           ///< What a run of profile() takes while nothing records it; 0: unknown.

  /// The number of a name; always the same for the same text.
  NameId intern(std::string_view name);
  [[nodiscard]] const std::string& name(NameId id) const { return names_[id]; }
  [[nodiscard]] std::size_t names() const noexcept { return names_.size(); }

  void sort();
  /// From the first begin to the last end of anything; empty without events.
  [[nodiscard]] TimeSpan extent() const noexcept;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
  };
  std::vector<std::string> names_;
  std::unordered_map<std::string, NameId, Hash, std::equal_to<>> ids_;
};

}  // namespace pianola
