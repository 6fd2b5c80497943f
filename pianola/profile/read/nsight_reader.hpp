#pragma once
#include <pianola/profile/read/nsight_tables.hpp>
#include <pianola/profile/read/nvtx_name.hpp>
#include <pianola/profile/read/time_check.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pianola::profiling {

/// Turns the tables of one export into a timeline.
class NsightReader {
 public:
  NsightReader(const NsightTables& tables, Timeline& timeline);

  /// Adds all that is there, sorted and as a timeline promises it, and says in the notes what was left out.
  void read();

 private:
  void read_calls();
  void read_kernels();
  void read_copies();
  void read_memsets();
  void read_graph_launches();
  void read_ranges();

  /// Nothing of it where the row has no times, which is counted.
  /// @throws UsageError  The row says what cannot be right.
  void add_work(const SqliteRows& row, DeviceWork::Kind kind, NameId name, std::uint64_t bytes = 0);
  [[nodiscard]] bool has_times(const SqliteRows& row);
  void check(const SqliteRows& row, TimeSpan time);
  [[nodiscard]] SqliteRows rows(const char* table, std::span<const NsightColumn> columns);
  [[nodiscard]] std::uint64_t bytes(const SqliteRows& row, int column) const;
  [[nodiscard]] std::string place(const SqliteRows& row) const;
  [[noreturn]] void refuse(const SqliteRows& row, const char* what, std::int64_t number) const;
  [[nodiscard]] std::int32_t process(std::int64_t global_id);
  /// Of StringIds; empty where it has none.
  std::string_view string(std::int64_t id);
  NameId call_name(std::int64_t id);
  NameId kernel_name(const SqliteRows& row);
  NvtxName range_name(const SqliteRows& row);

  void end_open_ranges();
  [[nodiscard]] std::string device_name() const;
  void note_what_is_missing();
  void note_processes();

  const NsightTables& tables_;
  Timeline& timeline_;
  SqliteRows strings_;
  std::unordered_map<std::int64_t, NameId> names_;             ///< Of calls and kernels, by their numbers in StringIds.
  std::unordered_map<std::uint64_t, std::int32_t> processes_;  ///< Ours by Nsight's.
  std::vector<std::uint64_t> numbers_;                         ///< Nsight's, by ours.
  TimeCheck check_;
  const char* table_ = "";  ///< Whose rows are being read.
  std::size_t untimed_ = 0, migrations_ = 0, whole_graphs_ = 0;
};

}  // namespace pianola::profiling
