#pragma once
#include <pianola/core/report_table.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pianola {

/// What one line of a step has in use where most is.
struct MemoryUser {
  std::string place;  ///< "aten::mm, forward at model.py:12".
  std::size_t blocks = 0;
  std::uint64_t bytes = 0;
};

namespace graph {
/// The first dozen of them.
[[nodiscard]] ReportTable table_of(const std::vector<MemoryUser>& at_peak);
}  // namespace graph

}  // namespace pianola
