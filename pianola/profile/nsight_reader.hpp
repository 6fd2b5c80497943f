#pragma once
#include <pianola/profile/nsight_tables.hpp>
#include <pianola/profile/nvtx_name.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <cstdint>
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
  void add_work(const SqliteRows& row, DeviceWork::Kind kind, NameId name, std::uint64_t bytes = 0);
  [[nodiscard]] bool has_times(const SqliteRows& row);
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
  std::unordered_map<std::int64_t, NameId> names_;  ///< Of calls and kernels, by their numbers in StringIds.
  std::vector<std::uint64_t> processes_;            ///< By Nsight's number; the place is ours.
  std::size_t untimed_ = 0, migrations_ = 0, whole_graphs_ = 0;
};

}  // namespace pianola::profiling
