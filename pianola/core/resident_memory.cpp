#include <pianola/core/resident_memory.hpp>

#include <unistd.h>

#include <fstream>

namespace pianola {

// proc(5): the second number is the pages that are resident.
std::size_t resident_memory() {
  std::ifstream statm("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  if (!(statm >> all >> resident)) return 0;
  static const auto kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return resident * kPage;
}

}  // namespace pianola
