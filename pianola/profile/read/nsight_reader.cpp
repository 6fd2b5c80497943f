#include <pianola/profile/read/nsight_reader.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/plural.hpp>
#include <pianola/profile/call_kind.hpp>
#include <pianola/profile/read/host_ranges.hpp>
#include <pianola/profile/read/nesting.hpp>
#include <pianola/profile/read/work_origin.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr const char* kCalls = "CUPTI_ACTIVITY_KIND_RUNTIME";  // The driver's too.
constexpr const char* kKernels = "CUPTI_ACTIVITY_KIND_KERNEL";
constexpr const char* kCopies = "CUPTI_ACTIVITY_KIND_MEMCPY";
constexpr const char* kMemsets = "CUPTI_ACTIVITY_KIND_MEMSET";
constexpr const char* kGraphs = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
constexpr const char* kRanges = "NVTX_EVENTS";

constexpr Nanoseconds kOpen = std::numeric_limits<Nanoseconds>::max();  // The end of a range that did not end.

// The places of the columns that several tables have.
enum Place : int { kStart, kEnd, kGlobalId, kCorrelation, kDevice, kStream, kGraph, kGraphNode, kFirstOther };
enum CallPlace : int { kCallName = kCorrelation + 1 };
enum KernelPlace : int { kDemangled = kFirstOther, kShort };
enum CopyPlace : int { kCopyBytes = kFirstOther, kCopyKind, kSource, kDestination };
enum MemsetPlace : int { kMemsetBytes = kFirstOther, kMemoryKind };
enum RangePlace : int { kText = kGlobalId + 1, kTextId, kEventType };

/// The columns of a table of work, in the order of Place, with others after them.
template <std::size_t kOthers>
constexpr auto work_columns(const NsightColumn (&others)[kOthers]) {
  std::array<NsightColumn, kFirstOther + kOthers> columns = {{{"start"},
                                                              {"end"},
                                                              {"globalPid", false},
                                                              {"correlationId", false},
                                                              {"deviceId"},
                                                              {"streamId"},
                                                              {"graphId", false},
                                                              {"graphNodeId", false}}};
  for (std::size_t i = 0; i < kOthers; ++i) columns[kFirstOther + i] = others[i];
  return columns;
}

// Numbers of ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND, in the words of torch.profiler.
constexpr std::array kCopyKinds = {"<unknown>", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA",
                                   "AtoD",      "DtoA", "DtoD", "HtoH", "PtoP"};
constexpr std::array kMemoryKinds = {"Pageable", "Pinned",        "Device",         "Array",
                                     "Managed",  "Device Static", "Managed Static", "Unknown"};
// Of ENUM_NSYS_EVENT_TYPE. Others are marks, and names of domains, threads and categories.
constexpr std::int64_t kPushPopRange = 59, kStartEndRange = 60;
constexpr std::int64_t kFirstMigration = 11, kLastMigration = 13;  // Of unified memory, at faults of pages.

template <std::size_t kSize>
const char* word(const std::array<const char*, kSize>& words, std::int64_t number, const char* otherwise) {
  return number >= 0 && number < static_cast<std::int64_t>(kSize) ? words[static_cast<std::size_t>(number)] : otherwise;
}

const char* memory_kind(const SqliteRows& row, int column) {
  return row.has(column) ? word(kMemoryKinds, row.integer(column), "Unknown") : "Unknown";
}

// Nsight numbers machine, process and thread in one: the last 24 bits are the thread's, the 24 before them the process's.
constexpr unsigned kThreadBits = 24;
constexpr std::uint64_t kThreadMask = (std::uint64_t{1} << kThreadBits) - 1;
constexpr std::uint64_t process_of(std::int64_t global_id) {
  return static_cast<std::uint64_t>(global_id) >> kThreadBits;
}
constexpr std::int64_t thread_of(std::int64_t global_id) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(global_id) & kThreadMask);
}
constexpr std::uint64_t system_pid(std::uint64_t process) { return process & kThreadMask; }

TimeSpan time_of(const SqliteRows& row) { return {.begin = row.integer(kStart), .end = row.integer(kEnd)}; }

}  // namespace

NsightReader::NsightReader(const NsightTables& tables, Timeline& timeline)
    : tables_(tables),
      timeline_(timeline),
      strings_(tables.query("SELECT value FROM StringIds WHERE id = ?1")),
      check_("the " + timeline.source) {}

void NsightReader::read() {
  if (tables_.has(kCalls)) read_calls();
  if (tables_.has(kKernels)) read_kernels();
  if (tables_.has(kCopies)) read_copies();
  if (tables_.has(kMemsets)) read_memsets();
  if (tables_.has(kGraphs)) read_graph_launches();
  if (tables_.has(kRanges)) read_ranges();
  find_processes(timeline_, processes_.size());
  find_graphs(timeline_);
  end_open_ranges();
  keep_outer_calls(timeline_);
  timeline_.sort();
  nest_ranges(timeline_);
  timeline_.device_name = device_name();
  note_what_is_missing();
  note_processes();
}

void NsightReader::read_calls() {
  constexpr NsightColumn kColumns[] = {{"start"}, {"end"}, {"globalTid"}, {"correlationId", false}, {"nameId"}};
  for (SqliteRows row = rows(kCalls, kColumns); row.next();) {
    if (!has_times(row)) continue;
    const NameId name = call_name(row.integer(kCallName));
    timeline_.calls.push_back({.time = time_of(row),
                               .name = name,
                               .kind = call_kind(timeline_.name(name)),
                               .process = process(row.integer(kGlobalId)),
                               .thread = thread_of(row.integer(kGlobalId)),
                               .correlation = static_cast<std::uint64_t>(row.integer(kCorrelation))});
  }
}

void NsightReader::read_kernels() {
  constexpr auto kColumns = work_columns({{"demangledName", false}, {"shortName", false}});
  for (SqliteRows row = rows(kKernels, kColumns); row.next();) {
    add_work(row, DeviceWork::Kind::kernel, kernel_name(row));
  }
}

void NsightReader::read_copies() {
  constexpr auto kColumns = work_columns({{"bytes"}, {"copyKind"}, {"srcKind", false}, {"dstKind", false}});
  for (SqliteRows row = rows(kCopies, kColumns); row.next();) {
    const std::int64_t kind = row.integer(kCopyKind);
    if (kind >= kFirstMigration && kind <= kLastMigration) {
      ++migrations_;
      continue;
    }
    const NameId name = timeline_.intern(fmt::format("Memcpy {} ({} -> {})", word(kCopyKinds, kind, "<unknown>"),
                                                     memory_kind(row, kSource), memory_kind(row, kDestination)));
    add_work(row, DeviceWork::Kind::copy, name, bytes(row, kCopyBytes));
  }
}

void NsightReader::read_memsets() {
  constexpr auto kColumns = work_columns({{"bytes"}, {"memKind", false}});
  for (SqliteRows row = rows(kMemsets, kColumns); row.next();) {
    const NameId name = timeline_.intern(fmt::format("Memset ({})", memory_kind(row, kMemoryKind)));
    add_work(row, DeviceWork::Kind::memset, name, bytes(row, kMemsetBytes));
  }
}

/// Where Nsight was told to record each launch of a graph as one, which it does by default.
void NsightReader::read_graph_launches() {
  constexpr auto kColumns = work_columns({{"graphExecId", false}});
  for (SqliteRows row = rows(kGraphs, kColumns); row.next();) {
    const std::size_t before = timeline_.work.size();
    add_work(row, DeviceWork::Kind::kernel, timeline_.intern(fmt::format("graph {}", row.integer(kGraph))));
    whole_graphs_ += timeline_.work.size() - before;
  }
}

void NsightReader::read_ranges() {
  constexpr NsightColumn kColumns[] = {{"start"},       {"end"},           {"globalTid"},
                                       {"text", false}, {"textId", false}, {"eventType"}};
  for (SqliteRows row = rows(kRanges, kColumns); row.next();) {
    const std::int64_t type = row.integer(kEventType);
    if (type != kPushPopRange && type != kStartEndRange) continue;
    const NvtxName range = range_name(row);
    const Nanoseconds begin = row.integer(kStart);
    const bool open = !row.has_number(kEnd);
    check(row, {begin, open ? begin : row.integer(kEnd)});
    timeline_.ranges.push_back({.time = {.begin = begin, .end = open ? kOpen : row.integer(kEnd)},
                                .name = timeline_.intern(range.name),
                                .kind = range.kind,
                                .process = process(row.integer(kGlobalId)),
                                .thread = thread_of(row.integer(kGlobalId))});
  }
}

void NsightReader::add_work(const SqliteRows& row, DeviceWork::Kind kind, NameId name, std::uint64_t bytes) {
  if (!has_times(row)) return;
  if (!std::in_range<std::int32_t>(row.integer(kDevice))) refuse(row, "device", row.integer(kDevice));
  const auto node = static_cast<std::uint64_t>(row.integer(kGraphNode));
  const auto graph = static_cast<std::uint64_t>(row.integer(kGraph));
  timeline_.work.push_back({.time = time_of(row),
                            .name = name,
                            .kind = kind,
                            .process = row.has(kGlobalId) ? process(row.integer(kGlobalId)) : kUnknownProcess,
                            .device = static_cast<std::int32_t>(row.integer(kDevice)),
                            .stream = row.integer(kStream),
                            .correlation = static_cast<std::uint64_t>(row.integer(kCorrelation)),
                            .graph = graph != 0 ? graph : graph_of_node(node),
                            .bytes = bytes});
}

/// CUPTI writes two zeros where it has no times.
bool NsightReader::has_times(const SqliteRows& row) {
  const TimeSpan time = time_of(row);
  const bool timed = row.has_number(kStart) && row.has_number(kEnd) && time.end != 0;
  if (timed) {
    check(row, time);
  } else {
    ++untimed_;
  }
  return timed;
}

void NsightReader::check(const SqliteRows& row, TimeSpan time) {
  check_(time, [&] { return place(row); });
}

SqliteRows NsightReader::rows(const char* table, std::span<const NsightColumn> columns) {
  table_ = table;
  return tables_.rows(table, columns);
}

std::uint64_t NsightReader::bytes(const SqliteRows& row, int column) const {
  if (row.integer(column) < 0 || row.integer(column) > kMostBytes) refuse(row, "bytes", row.integer(column));
  return static_cast<std::uint64_t>(row.integer(column));
}

std::string NsightReader::place(const SqliteRows& row) const {
  return fmt::format("row {} of the table {}", row.number(), table_);
}

void NsightReader::refuse(const SqliteRows& row, const char* what, std::int64_t number) const {
  throw UsageError(
      {.what = fmt::format("the {} has a number that cannot be right: {} {}", timeline_.source, what, number),
       .where = place(row),
       .fix = "the file was damaged: export the report again (nsys export --type sqlite REPORT.nsys-rep)"});
}

std::int32_t NsightReader::process(std::int64_t global_id) {
  const std::uint64_t number = process_of(global_id);
  const auto [known, is_new] = processes_.emplace(number, static_cast<std::int32_t>(numbers_.size()));
  if (is_new) numbers_.push_back(number);
  return known->second;
}

std::string_view NsightReader::string(std::int64_t id) {
  strings_.restart(id);
  return strings_.next() ? strings_.text(0) : std::string_view();
}

/// Nsight names the version of a function's signature too: "cudaLaunchKernel_v7000".
NameId NsightReader::call_name(std::int64_t id) {
  const auto [known, is_new] = names_.emplace(id, NameId{});
  if (is_new) known->second = timeline_.intern(without_version(string(id)));
  return known->second;
}

NameId NsightReader::kernel_name(const SqliteRows& row) {
  const std::int64_t id = row.integer(row.has(kDemangled) ? kDemangled : kShort);
  const auto [known, is_new] = names_.emplace(id, NameId{});
  if (is_new) {
    const std::string_view name = string(id);
    known->second = timeline_.intern(name.empty() ? "(a kernel without a name)" : name);
  }
  return known->second;
}

/// The text itself, or the number of a registered one.
NvtxName NsightReader::range_name(const SqliteRows& row) {
  const std::string_view own = row.text(kText);
  const std::string_view text = own.empty() && row.has(kTextId) ? string(row.integer(kTextId)) : own;
  return text.empty() ? NvtxName{"(a range without a name)"} : parse_nvtx_name(text);
}

/// They last until the end of the recording.
void NsightReader::end_open_ranges() {
  Nanoseconds last = -kFurthestTime;
  const auto see = [&last](const auto& events) {
    for (const auto& event : events) last = std::max(last, event.time.end == kOpen ? event.time.begin : event.time.end);
  };
  see(timeline_.work);
  see(timeline_.calls);
  see(timeline_.ranges);
  for (HostRange& range : timeline_.ranges) {
    if (range.time.end == kOpen) range.time.end = last;
  }
}

/// Of the device that worked first. Versions differ in the table that has it.
std::string NsightReader::device_name() const {
  if (timeline_.work.empty()) return {};
  std::string statement;
  if (tables_.has("TARGET_INFO_GPU", {"id", "name"}) && tables_.has("TARGET_INFO_CUDA_DEVICE", {"gpuId", "cudaId"})) {
    statement =
        "SELECT gpu.name FROM TARGET_INFO_GPU AS gpu JOIN TARGET_INFO_CUDA_DEVICE AS device ON gpu.id = device.gpuId "
        "WHERE device.cudaId = ?1";
  } else if (tables_.has("TARGET_INFO_GPU", {"id", "name"})) {
    statement = "SELECT name FROM TARGET_INFO_GPU WHERE id = ?1";
  } else if (tables_.has("TARGET_INFO_CUDA_GPU", {"deviceId", "name"})) {  // Until 2021.
    statement = "SELECT name FROM TARGET_INFO_CUDA_GPU WHERE deviceId = ?1";
  } else {
    return {};
  }
  SqliteRows row = tables_.query(statement);
  row.restart(timeline_.work.front().device);
  return row.next() ? std::string(row.text(0)) : std::string();
}

void NsightReader::note_what_is_missing() {
  std::vector<std::string>& notes = timeline_.notes;
  if (whole_graphs_ > 0) {
    notes.push_back(
        fmt::format("{} launch{} of graphs {} recorded as one piece of work each: record with nsys profile "
                    "--cuda-graph-trace=node to see what is inside",
                    whole_graphs_, whole_graphs_ == 1 ? "" : "es", whole_graphs_ == 1 ? "was" : "were"));
  }
  if (timeline_.calls.empty()) {
    notes.emplace_back("no calls of CUDA were recorded: what the host did while the device was idle is not known");
  }
  if (untimed_ > 0) {
    notes.push_back(fmt::format("{} call{} or piece{} of work without times {} left out", untimed_, plural(untimed_),
                                plural(untimed_), untimed_ == 1 ? "was" : "were"));
  }
  if (migrations_ > 0) {
    notes.push_back(fmt::format("{} migration{} of unified memory {} left out", migrations_, plural(migrations_),
                                migrations_ == 1 ? "was" : "were"));
  }
}

void NsightReader::note_processes() {
  constexpr std::size_t kListed = 16;
  if (numbers_.size() < 2) return;
  std::string list;
  for (std::size_t i = 0; i < std::min(numbers_.size(), kListed); ++i) {
    list += fmt::format("{}{} is {}", i == 0 ? "" : ", ", i, system_pid(numbers_[i]));
  }
  if (numbers_.size() > kListed) list += fmt::format(", and {} more", numbers_.size() - kListed);
  timeline_.notes.push_back(fmt::format("processes by number: {}", list));
}

}  // namespace pianola::profiling
